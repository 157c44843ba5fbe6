#include "tera/hf/config/hf_limits.h"

#include <algorithm>
#include <array>
#include <string>

#include "tera/base/error.h"
#include "tera/config/catalog.h"
#include "tera/config/family.h"
#include "tera/config/run_config.h"
#include "tera/config/value.h"

namespace tera {
namespace {

struct KeyNames {
  std::string_view ours, file;
};
constexpr std::array key_names{KeyNames{"num_layers", "num_hidden_layers"},
                               KeyNames{"ffn_hidden_size", "intermediate_size"},
                               KeyNames{"num_query_groups", "num_key_value_heads"},
                               KeyNames{"kv_channels", "head_dim"},
                               KeyNames{"layernorm_epsilon", "rms_norm_eps"},
                               KeyNames{"rotary_base", "rope_theta"},
                               KeyNames{"window_size", "sliding_window"},
                               KeyNames{"mla.q_lora_rank", "q_lora_rank"},
                               KeyNames{"mla.kv_lora_rank", "kv_lora_rank"},
                               KeyNames{"mla.qk_head_dim", "qk_nope_head_dim"},
                               KeyNames{"mla.qk_pos_emb_head_dim", "qk_rope_head_dim"},
                               KeyNames{"mla.v_head_dim", "v_head_dim"},
                               KeyNames{"mla.rotary_scaling_factor", "rope_scaling.factor"},
                               KeyNames{"moe.num_experts", "num_experts"},
                               KeyNames{"moe.router_topk", "num_experts_per_tok"},
                               KeyNames{"moe.ffn_hidden_size", "moe_intermediate_size"},
                               KeyNames{"moe.aux_loss_coeff", "router_aux_loss_coef"},
                               KeyNames{"moe.router_topk_scaling_factor", "routed_scaling_factor"},
                               KeyNames{"init_method_std", "initializer_range"}};

std::string_view name_in_file(std::string_view ours, const ModelFamily& family) {
  if (family.hf_key) return family.hf_key(ours);
  const auto known = std::ranges::find(key_names, ours, &KeyNames::ours);
  return known == key_names.end() ? ours : known->file;  // both have the same name: rope_scaling.factor, vocab_size
}

}  // namespace

void check_hf_limits(const HfFields& config, const ModelConfig& model) {
  constexpr std::string_view section = "model.";
  RunConfig run;
  run.model = model;
  for_each_value(run, [&](const std::string& key, const Field& field, const void* value) {
    if (!key.starts_with(section)) return;
    const std::string wrong = check_limits(field, value);
    require_user(wrong.empty(), "{}{} is {}: {}", config.where(),
                 name_in_file(std::string_view(key).substr(section.size()), *model.arch), write_value(field, value),
                 wrong);
  });
}

}  // namespace tera
