// Mixtral: Mistral's attention; every layer has experts.

#include "tera/hf/config/hf_decoder.h"
#include "tera/hf/config/hf_moe.h"
#include "tera/models/families/families.h"

namespace tera::mixtral {
namespace {

constexpr HfDecoder keys{
    .sizes =
        {.vocab = 32000, .hidden = 4096, .ffn = 14336, .layers = 32, .heads = 32, .kv_heads = 8, .positions = 131072},
    .eps = 1e-5};

void set_defaults(ModelConfig& model) {
  set_llama_defaults(model);
  model.rotary_base = 1'000'000;
  model.moe.num_experts = 8;
  model.moe.router_topk = 2;
}

void read_hf(const HfFields& config, ModelConfig& model) {
  read_hf_decoder(config, keys, model);
  model.window_size = read_hf_window(config, true, 0);
  read_hf_moe(config, model);
  model.moe.ffn_hidden_size = model.ffn_hidden_size;
  if (config.number("router_jitter_noise").value_or(0) != 0) config.refuse("router_jitter_noise", "0 is");
}

void write_hf(const ModelConfig& model, HfJson& config) {
  write_hf_decoder(model, keys, config);
  write_hf_window(model, config);
  check_hf_equal_windows(model);
  write_hf_moe(model, "num_local_experts", config);
}

void finish_hf(const ModelConfig& model, HfJson& config) {
  finish_hf_rope(model, config);
  if (!config.contains("num_local_experts")) config["num_local_experts"] = model.moe.num_experts;
}

// intermediate_size is the width of an expert: there is no other feed-forward.
void to_hf_form(ModelConfig& model) { model.ffn_hidden_size = model.moe.ffn_hidden_size; }

FamilyNames names() {
  FamilyNames names = llama_names();
  names.experts = {.router = "block_sparse_moe.gate",
                   .expert = "block_sparse_moe.experts.",
                   .gate = "w1",
                   .up = "w3",
                   .down = "w2",
                   .shared = "block_sparse_moe.shared_expert",
                   .shared_gate = "block_sparse_moe.shared_expert_gate",
                   .fused_router = "mlp.gate",
                   .fused_gate_up = "mlp.experts.gate_up_proj",
                   .fused_down = "mlp.experts.down_proj"};
  return names;
}

}  // namespace

extern const ModelFamily family{.name = "mixtral",
                                .hf_type = "mixtral",
                                .hf_class = "MixtralForCausalLM",
                                .hf_since = "4.46.0",
                                .defaults = set_defaults,
                                .read_hf = read_hf,
                                .write_hf = write_hf,
                                .finish_hf = finish_hf,
                                .to_hf_form = to_hf_form,
                                .names = names,
                                .make_spec = make_decoder_spec,
                                .has_experts = true};

}  // namespace tera::mixtral
