#include <algorithm>

#include "tera/backend/cuda/cuda_ops.h"
#include "tera/backend/cuda/kernels/experts/route.cuh"
#include "tera/backend/cuda/runtime/cuda_error.h"
#include "tera/backend/cuda/workspace.h"
#include "tera/ops/route.h"

namespace tera::cuda {
namespace {

static_assert(max_router_experts <= kernels::max_route_experts && max_topk <= 32);

kernels::RouteRule rule_of(const RouterRule& rule, std::int64_t experts) {
  return {.experts = static_cast<int>(experts),
          .topk = static_cast<int>(rule.topk),
          .sigmoid = rule.score == ScoreFunction::sigmoid,
          .renormalize = rule.renormalize,
          .force_balance = rule.force_balance,
          .scale = rule.scale,
          .groups = static_cast<int>(rule.groups),
          .group_topk = static_cast<int>(rule.group_topk),
          .group_best = static_cast<int>(rule.group_best)};
}

// Kernels have no special case for a single part: it is as long as all rows.
kernels::RouteParts parts_of(const RowParts& parts) {
  if (parts.part_rows == 0) return {parts.rows, std::max<std::int64_t>(parts.rows, 1), 0};
  return {parts.rows, parts.part_rows, parts.first_row};
}

template <class T>
T* optional(const Tensor& tensor) {
  return tensor ? tensor.as<T>() : nullptr;
}

}  // namespace

template <>
void CudaOps::compute(const RouteArgs& args) {
  const PartBlocks blocks = route_blocks(args);
  const std::int64_t experts = args.logits.dim(1), sums = args.sums() ? blocks.count() : 0;
  auto* memory = reinterpret_cast<float*>(workspace(route_bytes(args)).data());
  const kernels::Route route{.logits = args.logits.as<float>(),
                             .bias = optional<float>(args.bias),
                             .rows = args.rule.force_balance ? args.rows.as<std::int64_t>() : nullptr,
                             .experts = args.experts.as<std::int32_t>(),
                             .weights = args.weights.as<float>(),
                             .rule = rule_of(args.rule, experts),
                             .parts = parts_of(args.parts()),
                             .block_rows = blocks.size,
                             .per_part = blocks.per_part(),
                             .blocks = blocks.count(),
                             .first_part = blocks.parts.first(),
                             .last_part = blocks.parts.first() + blocks.parts.count() - 1,
                             .counts = optional<std::int32_t>(args.counts),
                             .score_sums = optional<float>(args.score_sums),
                             .z_sum = optional<float>(args.z_sum),
                             .all_parts = args.counts       ? args.counts.dim(0)
                                          : args.score_sums ? args.score_sums.dim(0)
                                                            : 0,
                             .block_scores = sums > 0 ? memory : nullptr,
                             .block_z = memory + 2 * sums * experts,
                             .block_counts = reinterpret_cast<std::int32_t*>(memory + sums * experts)};
  check(kernels::launch_route(route, stream_), "route");
}

template <>
void CudaOps::compute(const RouteBackArgs& args) {
  check(kernels::launch_route_back({.logits = args.logits.as<float>(),
                                    .experts = args.experts.as<std::int32_t>(),
                                    .dweights = args.dweights.as<float>(),
                                    .loads = optional<float>(args.loads),
                                    .z_scale = optional<float>(args.z_scale),
                                    .z_coefficient = args.z_coefficient,
                                    .dlogits = args.dlogits.as<float>(),
                                    .parts = parts_of(args.parts()),
                                    .rule = rule_of(args.rule, args.logits.dim(1))},
                                   stream_),
        "route_back");
}

template <>
void CudaOps::compute(const BalanceLossArgs& args) {
  check(kernels::launch_balance_loss({.counts = optional<std::int32_t>(args.counts),
                                      .shares = optional<float>(args.shares),
                                      .score_sums = args.score_sums.as<float>(),
                                      .scale = args.scale.as<float>(),
                                      .loads = args.loads.as<float>(),
                                      .loss = args.loss.as<float>(),
                                      .elements = count(args.score_sums.shape),
                                      .load_factor = args.counts ? args.load_of_count() : args.load_of_share(),
                                      .accumulate = args.accumulate},
                                     stream_),
        "balance_loss");
}

template <>
void CudaOps::compute(const ExpertBiasArgs& args) {
  check(kernels::launch_expert_bias({.counts = args.counts.as<std::int32_t>(),
                                     .bias = optional<float>(args.bias),
                                     .shares = optional<float>(args.shares),
                                     .grad_factor = optional<float>(args.grad_factor),
                                     .experts = args.counts.dim(0),
                                     .rate = args.rate},
                                    stream_),
        "expert_bias");
}

}  // namespace tera::cuda
