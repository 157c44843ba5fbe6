#include "tera/hf/config/hf_mla.h"

#include <algorithm>
#include <string>

#include "tera/base/error.h"
#include "tera/config/moe_layers.h"
#include "tera/config/setup.h"

namespace tera {
namespace {

std::int64_t integer_or(const HfFields& config, const char* key, std::int64_t absent) {
  return config.is_null(key) ? 0 : config.integer(key).value_or(absent);
}

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

// Refuses any text but the supported one; the key may be absent.
void refuse_other(const HfFields& config, const char* key, std::string_view supported) {
  if (config.text(key).value_or(std::string(supported)) != supported)
    config.refuse(key, std::string(supported) + " is");
}

void read_groups(const HfFields& config, MoeConfig& moe, std::int64_t groups, std::int64_t chosen) {
  groups = integer_or(config, "n_group", groups);
  chosen = integer_or(config, "topk_group", chosen);
  const bool all = groups <= 1;
  moe.router_num_groups = all ? 0 : groups;
  moe.router_group_topk = all ? 0 : chosen;
  if (all) return;
  require_user(moe.num_experts % groups == 0, "{}n_group is {}, which does not divide n_routed_experts, {}",
               config.where(), groups, moe.num_experts);
  require_user(chosen >= 1 && chosen <= groups, "{}topk_group is {}, and there are {} groups", config.where(), chosen,
               groups);
}

void read_v2_router(const HfFields& config, MoeConfig& moe) {
  refuse_other(config, "scoring_func", "softmax");
  const std::string method = config.text("topk_method").value_or("greedy");
  if (method != "greedy" && method != "group_limited_greedy")
    config.refuse("topk_method", "greedy and group_limited_greedy are");
  if (config.flag("norm_topk_prob").value_or(false)) config.refuse("norm_topk_prob", "false is");
  if (method == "greedy")
    moe.router_num_groups = moe.router_group_topk = 0;
  else
    read_groups(config, moe, 0, 0);
}

void read_v3_router(const HfFields& config, MoeConfig& moe) {
  refuse_other(config, "scoring_func", "sigmoid");
  refuse_other(config, "topk_method", "noaux_tc");
  if (moe.router_topk > 1 && !config.flag("norm_topk_prob").value_or(true)) config.refuse("norm_topk_prob", "true is");
  read_groups(config, moe, 8, 4);
}

void read_layers(const HfFields& config, ModelConfig& model, std::int64_t default_dense) {
  if (config.integer("moe_layer_freq").value_or(1) != 1) config.refuse("moe_layer_freq", "1 is");
  const std::int64_t dense = integer_or(config, "first_k_dense_replace", default_dense);
  require_user(dense >= 0 && dense < model.num_layers, "{}first_k_dense_replace is {}, and there are {} layers",
               config.where(), dense, model.num_layers);
  std::vector<bool> layers(static_cast<std::size_t>(model.num_layers), true);
  std::fill_n(layers.begin(), dense, false);
  set_moe_layers(model.moe, layers);
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
  if (model.arch == Arch::deepseek_v3) model.rotary_interleaved = config.flag("rope_interleave").value_or(true);
  move_scaling(config, model);
}

void write_hf_mla(const ModelConfig& model, HfJson& config) {
  const MlaConfig& mla = model.mla;
  config["q_lora_rank"] = mla.q_lora_rank > 0 ? HfJson(mla.q_lora_rank) : HfJson(nullptr);
  config["kv_lora_rank"] = mla.kv_lora_rank;
  config["qk_nope_head_dim"] = mla.qk_head_dim;
  config["qk_rope_head_dim"] = mla.qk_pos_emb_head_dim;
  config["v_head_dim"] = mla.v_head_dim;
  if (model.arch == Arch::deepseek_v3) config["rope_interleave"] = model.rotary_interleaved;
}

void read_deepseek_moe(const HfFields& config, ModelConfig& model) {
  MoeConfig& moe = model.moe;
  const bool v3 = model.arch == Arch::deepseek_v3;
  moe.num_experts = config.size({"n_routed_experts"}, moe.num_experts);
  moe.router_topk = config.size({"num_experts_per_tok"}, moe.router_topk);
  require_user(moe.router_topk <= moe.num_experts, "{}num_experts_per_tok is {}, and there are {} experts",
               config.where(), moe.router_topk, moe.num_experts);
  moe.ffn_hidden_size = config.size({"moe_intermediate_size"}, v3 ? 2048 : 1407);
  const std::int64_t shared = integer_or(config, "n_shared_experts", v3 ? 1 : 2);
  require_user(shared >= 0 && shared <= 1024, "{}n_shared_experts is {}", config.where(), shared);
  moe.shared_expert_intermediate_size = shared * moe.ffn_hidden_size;
  moe.router_topk_scaling_factor = config.number("routed_scaling_factor").value_or(v3 ? 2.5 : 1);
  moe.aux_loss_coeff = {config.number("aux_loss_alpha").value_or(moe.aux_loss_coeff.front())};
  if (!config.flag("seq_aux").value_or(true))
    moe.router_load_balancing_type = {std::string(name_of(LoadBalancing::aux_loss))};
  if (v3)
    read_v3_router(config, moe);
  else
    read_v2_router(config, moe);
  read_layers(config, model, v3 ? 3 : 0);
}

void write_deepseek_moe(const ModelConfig& model, HfJson& config) {
  const MoeConfig& moe = model.moe;
  const bool v3 = model.arch == Arch::deepseek_v3, groups = moe.router_num_groups > 0;
  const std::vector<bool> layers = moe_layers(moe, model.num_layers);
  config["n_routed_experts"] = moe.num_experts;
  config["num_experts_per_tok"] = moe.router_topk;
  config["moe_intermediate_size"] = moe.ffn_hidden_size;
  config["n_shared_experts"] = moe.shared_expert_intermediate_size / moe.ffn_hidden_size;
  config["first_k_dense_replace"] = std::ranges::find(layers, true) - layers.begin();
  config["moe_layer_freq"] = 1;
  config["routed_scaling_factor"] = moe.router_topk_scaling_factor;
  config["n_group"] = groups ? moe.router_num_groups : 1;
  config["topk_group"] = groups ? moe.router_group_topk : 1;
  config["norm_topk_prob"] = v3;
  config["scoring_func"] = v3 ? "sigmoid" : "softmax";
  config["topk_method"] = v3 ? "noaux_tc" : groups ? "group_limited_greedy" : "greedy";
  config["num_nextn_predict_layers"] = model.mtp_num_layers;
  if (moe.aux_loss_coeff.size() != 1) return;
  config["aux_loss_alpha"] = moe.aux_loss_coeff.front();
  config["seq_aux"] = moe.router_load_balancing_type.front() == name_of(LoadBalancing::seq_aux_loss);
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
