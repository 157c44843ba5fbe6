#include "tera/hf/config/hf_routed_experts.h"

#include <algorithm>
#include <string>

#include "tera/base/error.h"
#include "tera/config/moe_layers.h"

namespace tera {
namespace {

std::int64_t integer_or(const HfFields& config, const char* key, std::int64_t absent) {
  return config.is_null(key) ? 0 : config.integer(key).value_or(absent);
}

// Refuses any text but the supported one; the key may be absent.
void refuse_other(const HfFields& config, const char* key, std::string_view supported) {
  if (config.text(key).value_or(std::string(supported)) != supported)
    config.refuse(key, std::string(supported) + " is");
}

void read_groups(const HfFields& config, const HfRoutedExperts& keys, MoeConfig& moe) {
  const std::int64_t groups = integer_or(config, "n_group", keys.groups);
  const std::int64_t chosen = integer_or(config, "topk_group", keys.chosen_groups);
  const bool all = groups <= 1;
  moe.router_num_groups = all ? 0 : groups;
  moe.router_group_topk = all ? 0 : chosen;
  if (all) return;
  require_user(moe.num_experts % groups == 0, "{}n_group is {}, which does not divide n_routed_experts, {}",
               config.where(), groups, moe.num_experts);
  require_user(chosen >= 1 && chosen <= groups, "{}topk_group is {}, and there are {} groups", config.where(), chosen,
               groups);
}

void read_softmax_router(const HfFields& config, const HfRoutedExperts& keys, MoeConfig& moe) {
  refuse_other(config, "scoring_func", "softmax");
  const std::string method = config.text("topk_method").value_or("greedy");
  if (method != "greedy" && method != "group_limited_greedy")
    config.refuse("topk_method", "greedy and group_limited_greedy are");
  if (config.flag("norm_topk_prob").value_or(false)) config.refuse("norm_topk_prob", "false is");
  if (method == "greedy")
    moe.router_num_groups = moe.router_group_topk = 0;
  else
    read_groups(config, keys, moe);
}

void read_sigmoid_router(const HfFields& config, const HfRoutedExperts& keys, MoeConfig& moe) {
  refuse_other(config, "scoring_func", "sigmoid");
  refuse_other(config, "topk_method", "noaux_tc");
  if (moe.router_topk > 1 && !config.flag("norm_topk_prob").value_or(true)) config.refuse("norm_topk_prob", "true is");
  read_groups(config, keys, moe);
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

void read_hf_routed_experts(const HfFields& config, const HfRoutedExperts& keys, ModelConfig& model) {
  MoeConfig& moe = model.moe;
  moe.num_experts = config.size({"n_routed_experts"}, moe.num_experts);
  moe.router_topk = config.size({"num_experts_per_tok"}, moe.router_topk);
  require_user(moe.router_topk <= moe.num_experts, "{}num_experts_per_tok is {}, and there are {} experts",
               config.where(), moe.router_topk, moe.num_experts);
  moe.ffn_hidden_size = config.size({"moe_intermediate_size"}, keys.ffn);
  const std::int64_t shared = integer_or(config, "n_shared_experts", keys.shared);
  require_user(shared >= 0 && shared <= 1024, "{}n_shared_experts is {}", config.where(), shared);
  moe.shared_expert_intermediate_size = shared * moe.ffn_hidden_size;
  moe.router_topk_scaling_factor = config.number("routed_scaling_factor").value_or(keys.scaling);
  moe.aux_loss_coeff = {config.number("aux_loss_alpha").value_or(moe.aux_loss_coeff.front())};
  if (!config.flag("seq_aux").value_or(true))
    moe.router_load_balancing_type = {std::string(name_of(LoadBalancing::aux_loss))};
  if (keys.sigmoid)
    read_sigmoid_router(config, keys, moe);
  else
    read_softmax_router(config, keys, moe);
  read_layers(config, model, keys.dense_layers);
}

void write_hf_routed_experts(const ModelConfig& model, const HfRoutedExperts& keys, HfJson& config) {
  const MoeConfig& moe = model.moe;
  const bool groups = moe.router_num_groups > 0;
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
  config["norm_topk_prob"] = keys.sigmoid;
  config["scoring_func"] = keys.sigmoid ? "sigmoid" : "softmax";
  config["topk_method"] = keys.sigmoid ? "noaux_tc" : groups ? "group_limited_greedy" : "greedy";
  config["num_nextn_predict_layers"] = model.mtp_num_layers;
  if (moe.aux_loss_coeff.size() != 1) return;
  config["aux_loss_alpha"] = moe.aux_loss_coeff.front();
  config["seq_aux"] = moe.router_load_balancing_type.front() == name_of(LoadBalancing::seq_aux_loss);
}

}  // namespace tera
