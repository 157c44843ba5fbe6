#include "tera/hf/config/hf_moe.h"

#include <fmt/core.h>

#include <algorithm>
#include <string>

#include "tera/base/error.h"
#include "tera/config/moe_layers.h"
#include "tera/config/setup.h"

namespace tera {
namespace {

constexpr double default_loss = 0.001;

// transformers 5 accepts both names in both families.
std::int64_t read_experts(const HfFields& config, const MoeConfig& defaults) {
  const std::int64_t local = config.size({"num_local_experts"}, 0), all = config.size({"num_experts"}, 0);
  require_user(local == 0 || all == 0 || local == all,
               "{}num_local_experts is {} and num_experts is {}; they are names of one thing", config.where(), local,
               all);
  return local + all == 0 ? defaults.num_experts : std::max(local, all);
}

// The coefficient of the first load-balancing loss, or 0.
double find_loss(const ModelConfig& model) {
  const auto& types = model.moe.router_load_balancing_type;
  for (std::size_t i = 0; i < std::min(types.size(), model.moe.aux_loss_coeff.size()); ++i)
    if (types[i] != name_of(LoadBalancing::none)) return model.moe.aux_loss_coeff[i];
  return 0;
}

// Prints and parses, so that 1e-3 is the double 1e-3 and not the nearest float.
double as_written(float value) { return std::stod(fmt::format("{}", value)); }

}  // namespace

void read_hf_moe(const HfFields& config, ModelConfig& model) {
  MoeConfig& moe = model.moe;
  moe.num_experts = read_experts(config, moe);
  moe.router_topk = config.size({"num_experts_per_tok"}, moe.router_topk);
  require_user(moe.router_topk <= moe.num_experts, "{}num_experts_per_tok is {}, and there are {} experts",
               config.where(), moe.router_topk, moe.num_experts);
  moe.aux_loss_coeff = {config.number("router_aux_loss_coef").value_or(default_loss)};
}

void write_hf_moe(const ModelConfig& model, const char* experts_key, HfJson& config) {
  config[experts_key] = model.moe.num_experts;
  config["num_experts_per_tok"] = model.moe.router_topk;
  config["router_aux_loss_coef"] = find_loss(model);
  config["output_router_logits"] = false;
}

void read_hf_sparse_layers(const HfFields& config, ModelConfig& model) {
  MoeConfig& moe = model.moe;
  moe.decoder_sparse_step = config.size({"decoder_sparse_step"}, 1);
  moe.mlp_only_layers = config.integers("mlp_only_layers").value_or(std::vector<std::int64_t>{});
  const std::vector<bool> layers = moe_layers(moe, model.num_layers);
  require_user(std::ranges::find(layers, true) != layers.end(),
               "{}no layer has experts, by decoder_sparse_step and mlp_only_layers", config.where());
  set_moe_layers(moe, layers);
}

MoeConfig moe_section(const ModelShape& shape) {
  MoeConfig moe;
  if (!shape.moe) return moe;
  const MoeShape& from = *shape.moe;
  const RouterShape& router = from.router;
  moe.num_experts = from.experts;
  moe.ffn_hidden_size = from.ffn;
  set_moe_layers(moe, from.layers);
  moe.router_topk = router.topk;
  moe.router_score_function = router.score;
  moe.router_pre_softmax = router.score == ScoreFunction::softmax && !router.renormalize;
  moe.router_topk_scaling_factor = as_written(router.scale);
  if (router.groups > 1) {
    moe.router_num_groups = router.groups;
    moe.router_group_topk = router.group_topk;
  }
  moe.router_load_balancing_type.clear();
  moe.aux_loss_coeff.clear();
  for (const BalanceLoss& loss : from.losses) {
    moe.router_load_balancing_type.emplace_back(name_of(loss.kind));
    moe.aux_loss_coeff.push_back(loss.coefficient);
  }
  moe.router_enable_expert_bias = router.expert_bias;
  moe.shared_expert_intermediate_size = from.shared_ffn;
  moe.shared_expert_gate = from.shared_gate;
  return moe;
}

}  // namespace tera
