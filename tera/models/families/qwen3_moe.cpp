// Qwen3-MoE: Qwen3's attention; some layers, or all, have experts.

#include "tera/hf/config/hf_decoder.h"
#include "tera/hf/config/hf_moe.h"
#include "tera/models/families/families.h"

namespace tera::qwen3_moe {
namespace {

constexpr HfDecoder keys{
    .sizes =
        {.vocab = 151936, .hidden = 2048, .ffn = 6144, .layers = 24, .heads = 32, .kv_heads = 4, .positions = 32768},
    .attention_bias = true};

void set_defaults(ModelConfig& model) {
  set_llama_defaults(model);
  model.layernorm_epsilon = 1e-6;
  model.qk_layernorm = true;
  model.kv_channels = 128;
  model.moe.num_experts = 128;
  model.moe.router_topk = 8;
}

// All layers have the sliding window, or none; versions of transformers do not agree about layer_types.
void read_hf(const HfFields& config, ModelConfig& model) {
  read_hf_decoder(config, keys, model);
  model.window_size = read_hf_window(config, config.flag("use_sliding_window").value_or(false), 4096);
  read_hf_moe(config, model);
  model.moe.ffn_hidden_size = config.size({"moe_intermediate_size"}, 768);
  model.moe.router_pre_softmax = !config.flag("norm_topk_prob").value_or(false);
  read_hf_sparse_layers(config, model);
}

void write_hf(const ModelConfig& model, HfJson& config) {
  const MoeConfig& moe = model.moe;
  write_hf_decoder(model, keys, config);
  write_hf_window(model, config);
  check_hf_equal_windows(model);
  config["use_sliding_window"] = model.window_size > 0;
  config["max_window_layers"] = model.window_size > 0 ? model.max_window_layers : model.num_layers;
  write_hf_moe(model, "num_experts", config);
  config["moe_intermediate_size"] = moe.ffn_hidden_size;
  config["norm_topk_prob"] = !moe.router_pre_softmax;
  config["decoder_sparse_step"] = moe.decoder_sparse_step;
  config["mlp_only_layers"] = moe.mlp_only_layers;
}

void finish_hf(const ModelConfig& model, HfJson& config) {
  finish_hf_rope(model, config);
  if (!config.contains("num_experts")) config["num_experts"] = model.moe.num_experts;
}

}  // namespace

extern const ModelFamily family{.name = "qwen3_moe",
                                .hf_type = "qwen3_moe",
                                .hf_class = "Qwen3MoeForCausalLM",
                                .hf_since = "4.51.0",
                                .defaults = set_defaults,
                                .read_hf = read_hf,
                                .write_hf = write_hf,
                                .finish_hf = finish_hf,
                                .names = mlp_experts_names,
                                .make_spec = make_decoder_spec,
                                .has_experts = true};

}  // namespace tera::qwen3_moe
