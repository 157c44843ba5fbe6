#pragma once
// Multi-head latent attention (MLA) as the user writes it: Megatron's names. Needs model.multi_latent_attention.

#include <cstdint>
#include <span>

namespace tera {

struct Field;

struct MlaConfig {
  std::int64_t q_lora_rank = 0;
  std::int64_t kv_lora_rank = 512;
  std::int64_t qk_head_dim = 128;
  std::int64_t qk_pos_emb_head_dim = 64;
  std::int64_t v_head_dim = 128;
  double rotary_scaling_factor = 1;
  std::int64_t original_max_position_embeddings = 0;
  double beta_fast = 32;
  double beta_slow = 1;
  double mscale = 1;
  double mscale_all_dim = 0;

  static std::span<const Field> fields();
  bool operator==(const MlaConfig&) const = default;
};

}  // namespace tera
