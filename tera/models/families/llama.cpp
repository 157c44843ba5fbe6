// Llama 2 and 3.

#include "tera/base/error.h"
#include "tera/hf/config/hf_decoder.h"
#include "tera/hf/config/hf_rope.h"
#include "tera/hf/config/hf_window.h"
#include "tera/models/families/families.h"

namespace tera {

void set_llama_defaults(ModelConfig& model) {
  model.normalization = NormKind::rms_norm;
  model.activation = Activation::swiglu;
  model.position_embedding_type = PositionKind::rope;
  model.add_bias_linear = false;
  model.untie_embeddings_and_output_weights = true;
}

FamilyNames llama_names() {
  return {.embedding = "model.embed_tokens",
          .positions = "model.embed_positions",
          .layer = "model.layers.",
          .attention_norm = "input_layernorm",
          .out = "self_attn.o_proj",
          .mlp_norm = "post_attention_layernorm",
          .down = "mlp.down_proj",
          .qkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
          .q_norm = "self_attn.q_norm",
          .k_norm = "self_attn.k_norm",
          .gated_up = {"mlp.gate_proj", "mlp.up_proj"},
          .up = "mlp.up_proj",
          .final_norm = "model.norm",
          .head = "lm_head",
          .transposed = false,
          .mla = MlaNames{.q = "self_attn.q_proj",
                          .q_down = "self_attn.q_a_proj",
                          .q_norm = "self_attn.q_a_layernorm",
                          .q_up = "self_attn.q_b_proj",
                          .kv_down = "self_attn.kv_a_proj_with_mqa",
                          .kv_norm = "self_attn.kv_a_layernorm",
                          .kv_up = "self_attn.kv_b_proj"},
          .experts = {}};
}

FamilyNames mlp_experts_names() {
  FamilyNames names = llama_names();
  names.experts = {.router = "mlp.gate",
                   .expert = "mlp.experts.",
                   .gate = "gate_proj",
                   .up = "up_proj",
                   .down = "down_proj",
                   .shared = "mlp.shared_expert",
                   .shared_gate = "mlp.shared_expert_gate",
                   .fused_router = "mlp.gate",
                   .fused_gate_up = "mlp.experts.gate_up_proj",
                   .fused_down = "mlp.experts.down_proj"};
  return names;
}

void finish_hf_rope(const ModelConfig& model, nlohmann::ordered_json& config) { add_older_hf_rope(model, config); }

}  // namespace tera

namespace tera::llama {
namespace {

constexpr HfDecoder keys{
    .sizes =
        {.vocab = 32000, .hidden = 4096, .ffn = 11008, .layers = 32, .heads = 32, .kv_heads = 0, .positions = 2048},
    .attention_bias = true,
    .mlp_bias = true};

// All layers see all keys; layer_types that say otherwise are refused.
void read_hf(const HfFields& config, ModelConfig& model) {
  read_hf_decoder(config, keys, model);
  set_window(model, read_hf_windows(config, model, 0, 0));
}
void write_hf(const ModelConfig& model, HfJson& config) { write_hf_decoder(model, keys, config); }

// Drops values, or refuses models, that transformers rejects although it could compute them.
void finish_hf(const ModelConfig& model, HfJson& config) {
  finish_hf_rope(model, config);
  require_user(model.hidden_size % model.num_attention_heads == 0,
               "model.hidden_size={} is no multiple of model.num_attention_heads={}: transformers refuses such a llama",
               model.hidden_size, model.num_attention_heads);
  const auto range = config.find("initializer_range");  // irrelevant for a trained model
  if (range != config.end() && range->is_number() && range->get<double>() > 1) config.erase("initializer_range");
}

}  // namespace

extern const ModelFamily family{.name = "llama",
                                .hf_type = "llama",
                                .hf_class = "LlamaForCausalLM",
                                .hf_since = "4.46.0",
                                .defaults = set_llama_defaults,
                                .read_hf = read_hf,
                                .write_hf = write_hf,
                                .finish_hf = finish_hf,
                                .names = llama_names,
                                .make_spec = make_decoder_spec};

}  // namespace tera::llama
