#include "tera/config/sections/mla.h"

#include "tera/config/field.h"
#include "tera/config/limits.h"

namespace tera {
namespace {

constexpr double max_head = 1 << 16;

}  // namespace

std::span<const Field> MlaConfig::fields() {
  using C = MlaConfig;
  static constexpr std::array table{
      field<&C::q_lora_rank>("q_lora_rank", "width of the latent that queries are made of; 0: none, one projection")
          .within(0, limits::max_width)
          .shapes(),
      field<&C::kv_lora_rank>("kv_lora_rank", "width of the latent that keys and values are made of")
          .within(1, limits::max_width)
          .shapes(),
      field<&C::qk_head_dim>("qk_head_dim", "channels of a head's queries and keys that know no position")
          .within(1, max_head)
          .shapes(),
      field<&C::qk_pos_emb_head_dim>("qk_pos_emb_head_dim",
                                     "channels behind them that RoPE turns; all heads share those of the key")
          .within(2, max_head)
          .shapes(),
      field<&C::v_head_dim>("v_head_dim", "channels of a head's values; no more than its queries have")
          .within(1, max_head)
          .shapes(),
      field<&C::rotary_scaling_factor>("rotary_scaling_factor",
                                       "YaRN: how many times longer the context becomes; 1: RoPE as it is")
          .at_least(1)
          .numerics(),
      field<&C::original_max_position_embeddings>("original_max_position_embeddings",
                                                  "YaRN: context before scaling; 0: max_position_embeddings")
          .within(0, limits::max_index)
          .numerics(),
      field<&C::beta_fast>("beta_fast", "YaRN: turns over the original context above which a channel stays")
          .above(0)
          .numerics(),
      field<&C::beta_slow>("beta_slow", "YaRN: turns over the original context below which a channel is divided")
          .above(0)
          .numerics(),
      field<&C::mscale>(
          "mscale",
          "YaRN: with g(u) = 0.1 u ln(rotary_scaling_factor) + 1, cos and sin are multiplied by g(mscale) / "
          "g(mscale_all_dim) where neither is 0, else by g(1)")
          .at_least(0)
          .numerics(),
      field<&C::mscale_all_dim>("mscale_all_dim", "YaRN: and scores by g(mscale_all_dim)^2; 0: not")
          .at_least(0)
          .numerics(),
  };
  return table;
}

}  // namespace tera
