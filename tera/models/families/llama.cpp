// Llama 2 and 3, and the families that share its names: Mistral (sliding window), Qwen2 (biases on q, k, v), Qwen3
// (norms on the heads of q and k); and with experts Mixtral, Qwen3-MoE and DeepSeek.

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

// Mistral's attention; every layer has experts.
FamilyNames mixtral_names() {
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

FamilyNames qwen3_moe_names() {
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

// DeepSeek-V2 and V3: multi-head latent attention (MLA); experts after the first dense layers.
FamilyNames deepseek_names() {
  FamilyNames names = qwen3_moe_names();
  names.experts->shared = "mlp.shared_experts";
  return names;
}

}  // namespace tera
