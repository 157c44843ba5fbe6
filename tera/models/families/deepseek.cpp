// DeepSeek-V2 and V3: multi-head latent attention (MLA); experts after the first dense layers; V3 with sigmoid scores,
// a bias for the choice and layers of multi-token prediction (MTP).

#include "tera/hf/config/hf_decoder.h"
#include "tera/hf/config/hf_mla.h"
#include "tera/hf/config/hf_routed_experts.h"
#include "tera/models/families/families.h"

namespace tera::deepseek {
namespace {

constexpr HfDecoder v2_keys{
    .sizes =
        {.vocab = 102400, .hidden = 4096, .ffn = 11008, .layers = 32, .heads = 32, .kv_heads = 0, .positions = 2048},
    .writes_head_dim = false,
    .latent_heads = true,
    .attention_bias = true};
constexpr HfDecoder v3_keys{
    .sizes =
        {.vocab = 129280, .hidden = 7168, .ffn = 18432, .layers = 61, .heads = 128, .kv_heads = 0, .positions = 4096},
    .writes_head_dim = false,
    .latent_heads = true,
    .attention_bias = true};
constexpr HfRoutedExperts v2_experts{.ffn = 1407, .shared = 2};
constexpr HfRoutedExperts v3_experts{
    .sigmoid = true, .ffn = 2048, .shared = 1, .dense_layers = 3, .groups = 8, .chosen_groups = 4, .scaling = 2.5};

void set_common_defaults(ModelConfig& model) {
  set_llama_defaults(model);
  model.layernorm_epsilon = 1e-6;
  model.rotary_interleaved = true;
  model.multi_latent_attention = true;
  model.moe.router_load_balancing_type = {std::string(name_of(LoadBalancing::seq_aux_loss))};
}

// These are the routing hyperparameters of the published models; a smaller model has to override them.
void set_v2_defaults(ModelConfig& model) {
  set_common_defaults(model);
  model.moe.num_experts = 64;
  model.moe.first_k_dense = 1;
  model.moe.router_topk = 6;
  model.moe.router_pre_softmax = true;
  model.moe.aux_loss_coeff = {1e-3};
}

void set_v3_defaults(ModelConfig& model) {
  set_common_defaults(model);
  model.mla.q_lora_rank = 1536;
  model.moe.num_experts = 256;
  model.moe.first_k_dense = 3;
  model.moe.router_topk = 8;
  model.moe.router_score_function = ScoreFunction::sigmoid;
  model.moe.router_topk_scaling_factor = 2.5;
  model.moe.router_num_groups = 8;
  model.moe.router_group_topk = 4;
  model.moe.router_enable_expert_bias = true;
  model.moe.aux_loss_coeff = {1e-4};
}

void read_common(const HfFields& config, const HfDecoder& keys, ModelConfig& model) {
  read_hf_decoder(config, keys, model);
  refuse_hf_flag(config, "mlp_bias", false);
  read_hf_mla(config, model);
}

void read_v2(const HfFields& config, ModelConfig& model) {
  read_common(config, v2_keys, model);
  read_hf_routed_experts(config, v2_experts, model);
}

void read_v3(const HfFields& config, ModelConfig& model) {
  read_common(config, v3_keys, model);
  model.rotary_interleaved = config.flag("rope_interleave").value_or(true);
  read_hf_routed_experts(config, v3_experts, model);
}

void write_v2(const ModelConfig& model, HfJson& config) {
  write_hf_decoder(model, v2_keys, config);
  write_hf_mla(model, config);
  write_hf_routed_experts(model, v2_experts, config);
}

void write_v3(const ModelConfig& model, HfJson& config) {
  write_hf_decoder(model, v3_keys, config);
  write_hf_mla(model, config);
  config["rope_interleave"] = model.rotary_interleaved;
  write_hf_routed_experts(model, v3_experts, config);
}

FamilyNames names() {
  FamilyNames names = mlp_experts_names();
  names.experts->shared = "mlp.shared_experts";
  return names;
}

}  // namespace

extern const ModelFamily v2{.name = "deepseek_v2",
                            .hf_type = "deepseek_v2",
                            .hf_class = "DeepseekV2ForCausalLM",
                            .hf_since = "4.54.0",
                            .defaults = set_v2_defaults,
                            .read_hf = read_v2,
                            .write_hf = write_v2,
                            .finish_hf = finish_hf_rope,
                            .names = names,
                            .make_spec = make_decoder_spec,
                            .has_experts = true,
                            .has_mla = true,
                            .mtp_in_files = ModelFamily::MtpInFiles::left_out};

extern const ModelFamily v3{.name = "deepseek_v3",
                            .hf_type = "deepseek_v3",
                            .hf_class = "DeepseekV3ForCausalLM",
                            .hf_since = "4.51.0",
                            .defaults = set_v3_defaults,
                            .read_hf = read_v3,
                            .write_hf = write_v3,
                            .finish_hf = finish_hf_rope,
                            .names = names,
                            .make_spec = make_decoder_spec,
                            .has_experts = true,
                            .needs_expert_bias = true,
                            .has_mla = true,
                            .mtp_in_files = ModelFamily::MtpInFiles::kept};

}  // namespace tera::deepseek
