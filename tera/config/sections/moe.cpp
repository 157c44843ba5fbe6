#include "tera/config/sections/moe.h"

#include "tera/config/field.h"
#include "tera/config/limits.h"

namespace tera {
namespace {

constexpr double max_experts = 512, max_topk = 32;  // the router kernels' limits (max_router_experts in ops/route.h)

}  // namespace

std::span<const Field> MoeConfig::fields() {
  using C = MoeConfig;
  static constexpr std::array table{
      field<&C::num_experts>("num_experts", "routed experts of a layer; 0: none, every layer is dense")
          .within(0, max_experts)
          .shapes(),
      field<&C::ffn_hidden_size>("ffn_hidden_size", "width of an expert; 0: model.ffn_hidden_size")
          .within(0, limits::max_width)
          .shapes()
          .derived_from_0(),
      field<&C::layer_freq>("layer_freq",
                            "layers 0, N, 2N, ... have experts; a layer has them where this and the next three keys "
                            "all allow it")
          .within(1, limits::max_layers)
          .shapes(),
      field<&C::first_k_dense>("first_k_dense", "the first K layers have no experts")
          .within(0, limits::max_layers)
          .shapes(),
      field<&C::decoder_sparse_step>("decoder_sparse_step", "layers N-1, 2N-1, ... have experts")
          .within(1, limits::max_layers)
          .shapes(),
      field<&C::mlp_only_layers>("mlp_only_layers", "layers without experts, counted from 0").shapes(),
      field<&C::router_topk>("router_topk", "experts of a token").within(1, max_topk).numerics(),
      field<&C::router_score_function>("router_score_function", "how logits of the router become scores").numerics(),
      field<&C::router_pre_softmax>("router_pre_softmax",
                                    "softmax: the chosen experts keep their scores as weights; false: the weights are "
                                    "made to add up to 1 (with sigmoid always, where there are several)")
          .numerics(),
      field<&C::router_topk_scaling_factor>("router_topk_scaling_factor", "the weights are multiplied by this")
          .within(1e-6, 1e6)
          .numerics(),
      field<&C::router_num_groups>("router_num_groups",
                                   "equal groups of neighbouring experts; a token chooses among those of its "
                                   "router_group_topk best groups; 0: no groups")
          .within(0, max_experts)
          .numerics(),
      field<&C::router_group_topk>("router_group_topk",
                                   "groups of a token; a group counts by its best expert, with sigmoid by the sum of "
                                   "its two best; 0: no groups")
          .within(0, max_experts)
          .numerics(),
      field<&C::router_load_balancing_type>(
          "router_load_balancing_type",
          "losses that keep experts evenly used: aux_loss over a microbatch, seq_aux_loss over each sequence, "
          "global_aux_loss over the global batch, several of them, or none")
          .numerics()
          .hf_default(),
      field<&C::aux_loss_coeff>("aux_loss_coeff", "what each of these losses is multiplied by")
          .within(0, 1e6)
          .numerics()
          .hf_default(),
      field<&C::z_loss_coeff>("z_loss_coeff", "times the mean square of logsumexp of the logits, added to the loss")
          .within(0, 1e6)
          .numerics()
          .hf_default(),
      field<&C::router_enable_expert_bias>("router_enable_expert_bias",
                                           "with sigmoid: a bias, for the choice alone, that each step moves towards "
                                           "even use")
          .shapes(),
      field<&C::router_bias_update_rate>("router_bias_update_rate", "how far a step moves that bias")
          .within(0, 1e3)
          .numerics()
          .hf_default(),
      field<&C::router_force_load_balancing>("router_force_load_balancing",
                                             "for benchmarks: every expert gets equally many tokens, whatever the "
                                             "scores say")
          .numerics()
          .hf_default(),
      field<&C::token_dispatcher_type>("token_dispatcher_type",
                                       "how tokens get to the ranks of their experts: every rank gathers all tokens, "
                                       "or gets those it needs")
          .numerics()
          .hf_default(),
      field<&C::expert_capacity_factor>("expert_capacity_factor",
                                        "an expert takes this many times its even share of the tokens, others are "
                                        "dropped, and all sizes are fixed; 0: no token is dropped")
          .within(0, 1e6)
          .numerics()
          .hf_default(),
      field<&C::token_drop_policy>("token_drop_policy",
                                   "with expert_capacity_factor: the smallest weights are dropped, or the last tokens")
          .numerics()
          .hf_default(),
      field<&C::expert_rank_capacity_factor>(
          "expert_rank_capacity_factor",
          "where no token is dropped: a rank has room for this many times its even share of the tokens, and ends the "
          "run when there are more; 0: room for the worst case")
          .within(0, 1e6)
          .numerics()
          .hf_default(),
      field<&C::shared_expert_intermediate_size>("shared_expert_intermediate_size",
                                                 "width of an expert that every token passes; 0: none")
          .within(0, limits::max_width)
          .shapes(),
      field<&C::shared_expert_gate>("shared_expert_gate", "a sigmoid gate on what the shared expert adds").shapes(),
      field<&C::shared_expert_overlap>("shared_expert_overlap",
                                       "the shared expert computes while tokens are on their way")
          .numerics()
          .hf_default(),
  };
  return table;
}

}  // namespace tera
