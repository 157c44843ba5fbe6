// Llama 2 and 3, and the families that share its names: Mistral (sliding window), Qwen2 (biases on q, k, v), Qwen3
// (norms on the heads of q and k).

#include "tera/models/family.h"

namespace tera {

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
          .transposed = false};
}

}  // namespace tera
