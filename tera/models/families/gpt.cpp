// GPT-2 and GPT-3: learned positions, LayerNorm, GELU, biases, tied embeddings. Files hold fused [Q | K | V] and
// weights as [in,out].

#include "tera/models/family.h"

namespace tera {

FamilyNames gpt_names() {
  return {.embedding = "transformer.wte",
          .positions = "transformer.wpe",
          .layer = "transformer.h.",
          .attention_norm = "ln_1",
          .out = "attn.c_proj",
          .mlp_norm = "ln_2",
          .down = "mlp.c_proj",
          .qkv = {"attn.c_attn"},
          .q_norm = "attn.q_norm",
          .k_norm = "attn.k_norm",
          .gated_up = {"mlp.c_gate", "mlp.c_fc"},
          .up = "mlp.c_fc",
          .final_norm = "transformer.ln_f",
          .head = "lm_head",
          .transposed = true,
          .mla = {},
          .experts = {}};
}

}  // namespace tera
