#pragma once
// Mixture of experts as the user writes it: Megatron's names without the prefix. num_experts=0: a dense model.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tera/base/kinds.h"

namespace tera {

struct Field;

// The load-balancing loss: tokens per expert are counted over a microbatch, each sequence, or the global batch.
enum class LoadBalancing : std::uint8_t { aux_loss, seq_aux_loss, global_aux_loss, none };
enum class TokenDispatcher : std::uint8_t { allgather, alltoall };
enum class TokenDropPolicy : std::uint8_t { probs, position };

struct MoeConfig {
  std::int64_t num_experts = 0;
  std::int64_t ffn_hidden_size = 0;
  std::int64_t layer_freq = 1;
  std::int64_t first_k_dense = 0;
  std::int64_t decoder_sparse_step = 1;
  std::vector<std::int64_t> mlp_only_layers;
  std::int64_t router_topk = 2;
  ScoreFunction router_score_function = ScoreFunction::softmax;
  bool router_pre_softmax = false;
  double router_topk_scaling_factor = 1;
  std::int64_t router_num_groups = 0;
  std::int64_t router_group_topk = 0;
  std::vector<std::string> router_load_balancing_type{"aux_loss"};
  std::vector<double> aux_loss_coeff{0};
  double z_loss_coeff = 0;
  bool router_enable_expert_bias = false;
  double router_bias_update_rate = 1e-3;
  bool router_force_load_balancing = false;
  TokenDispatcher token_dispatcher_type = TokenDispatcher::allgather;
  double expert_capacity_factor = 0;
  TokenDropPolicy token_drop_policy = TokenDropPolicy::probs;
  double expert_rank_capacity_factor = 0;
  std::int64_t shared_expert_intermediate_size = 0;
  bool shared_expert_gate = false;
  bool shared_expert_overlap = false;

  static std::span<const Field> fields();
  bool operator==(const MoeConfig&) const = default;
};

template <>
struct EnumNames<LoadBalancing> {
  static constexpr std::array values{std::pair{LoadBalancing::aux_loss, std::string_view("aux_loss")},
                                     std::pair{LoadBalancing::seq_aux_loss, std::string_view("seq_aux_loss")},
                                     std::pair{LoadBalancing::global_aux_loss, std::string_view("global_aux_loss")},
                                     std::pair{LoadBalancing::none, std::string_view("none")}};
};
template <>
struct EnumNames<TokenDispatcher> {
  static constexpr std::array values{std::pair{TokenDispatcher::allgather, std::string_view("allgather")},
                                     std::pair{TokenDispatcher::alltoall, std::string_view("alltoall")}};
};
template <>
struct EnumNames<TokenDropPolicy> {
  static constexpr std::array values{std::pair{TokenDropPolicy::probs, std::string_view("probs")},
                                     std::pair{TokenDropPolicy::position, std::string_view("position")}};
};

}  // namespace tera
