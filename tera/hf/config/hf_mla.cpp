#include "tera/hf/config/hf_mla.h"

#include "tera/base/error.h"
#include "tera/config/setup.h"

namespace tera {
namespace {

// Moves RoPE scaling, which was read as for any family, to the keys of model.mla.
void move_scaling(const HfFields& config, ModelConfig& model) {
  const RopeScaling scaling = model.rope_scaling;
  model.rope_scaling = {};
  if (scaling.type == RopeScalingKind::none) return;
  const char* map = config.find("rope_scaling") != nullptr ? "rope_scaling" : "rope_parameters";
  if (scaling.type != RopeScalingKind::yarn) config.refuse(map, "type yarn is");
  if (scaling.attention_factor != 0) config.refuse(map, "without attention_factor it is");
  if (!scaling.truncate) config.refuse(map, "without truncate it is");
  if (scaling.factor == 1) return;  // nothing is scaled
  model.mla.rotary_scaling_factor = scaling.factor;
  model.mla.original_max_position_embeddings = scaling.original_max_position_embeddings;
  model.mla.beta_fast = scaling.beta_fast;
  model.mla.beta_slow = scaling.beta_slow;
  model.mla.mscale = scaling.mscale;
  model.mla.mscale_all_dim = scaling.mscale_all_dim;
}

}  // namespace

void read_hf_mla(const HfFields& config, ModelConfig& model) {
  MlaConfig& mla = model.mla;
  constexpr std::int64_t default_q_lora = 1536;
  model.kv_channels = 0;
  mla.q_lora_rank = config.is_null("q_lora_rank") ? 0 : config.size({"q_lora_rank"}, default_q_lora);
  mla.kv_lora_rank = config.size({"kv_lora_rank"}, mla.kv_lora_rank);
  mla.qk_head_dim = config.size({"qk_nope_head_dim"}, mla.qk_head_dim);
  mla.qk_pos_emb_head_dim = config.size({"qk_rope_head_dim"}, mla.qk_pos_emb_head_dim);
  mla.v_head_dim = config.size({"v_head_dim"}, mla.v_head_dim);
  require_user(mla.qk_pos_emb_head_dim % 2 == 0,
               "{}qk_rope_head_dim is {}, and should be even: RoPE turns pairs of channels", config.where(),
               mla.qk_pos_emb_head_dim);
  require_user(mla.v_head_dim <= mla.qk_head_dim + mla.qk_pos_emb_head_dim,
               "{}v_head_dim is {}, and should be at most qk_nope_head_dim + qk_rope_head_dim", config.where(),
               mla.v_head_dim);
  move_scaling(config, model);
}

void write_hf_mla(const ModelConfig& model, HfJson& config) {
  const MlaConfig& mla = model.mla;
  config["q_lora_rank"] = mla.q_lora_rank > 0 ? HfJson(mla.q_lora_rank) : HfJson(nullptr);
  config["kv_lora_rank"] = mla.kv_lora_rank;
  config["qk_nope_head_dim"] = mla.qk_head_dim;
  config["qk_rope_head_dim"] = mla.qk_pos_emb_head_dim;
  config["v_head_dim"] = mla.v_head_dim;
}

MlaConfig mla_section(const ModelShape& shape) {
  MlaConfig mla;
  if (!shape.mla) return mla;
  mla.q_lora_rank = shape.mla->q_lora;
  mla.kv_lora_rank = shape.mla->kv_lora;
  mla.qk_head_dim = shape.mla->nope;
  mla.qk_pos_emb_head_dim = shape.mla->rotary;
  mla.v_head_dim = shape.mla->values;
  const RopeScaling& scaling = shape.rope.scaling;
  if (scaling.type != RopeScalingKind::yarn) return mla;
  mla.rotary_scaling_factor = scaling.factor;
  mla.original_max_position_embeddings = scaling.original_max_position_embeddings;
  mla.beta_fast = scaling.beta_fast;
  mla.beta_slow = scaling.beta_slow;
  mla.mscale = scaling.mscale;
  mla.mscale_all_dim = scaling.mscale_all_dim;
  return mla;
}

}  // namespace tera
