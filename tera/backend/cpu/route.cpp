#include "tera/backend/cpu/kernels/route.h"

#include <cmath>

#include "tera/backend/cpu/blocks.h"
#include "tera/backend/cpu/cpu_ops.h"
#include "tera/backend/cpu/workspace.h"
#include "tera/base/error.h"
#include "tera/ops/route.h"

namespace tera::cpu {
namespace {

static_assert(max_router_experts <= max_route_experts && max_topk <= max_route_topk);

const RouteKernels& kernels(Isa isa) {
  return pick(isa, []<Isa i>() -> const RouteKernels& { return route_kernels<i>(); });
}

RouteRule rule_of(const RouterRule& rule, std::int64_t experts) {
  return {.experts = experts,
          .topk = rule.topk,
          .sigmoid = rule.score == ScoreFunction::sigmoid,
          .renormalize = rule.renormalize,
          .force_balance = rule.force_balance,
          .scale = rule.scale,
          .groups = rule.groups,
          .group_topk = rule.group_topk,
          .group_best = rule.group_best};
}

PartBlocks route_blocks(const RouteArgs& args) { return {args.parts(), sum_blocks(args.logits.dim(0)).size}; }

// Partial sums of every block: of scores, of counts, of z-losses, where requested.
struct BlockSums {
  std::int64_t experts, blocks;
  float *scores = nullptr, *z = nullptr;
  std::int32_t* counts = nullptr;

  explicit BlockSums(const RouteArgs& args) : experts(args.logits.dim(1)), blocks(route_blocks(args).count()) {}
  static std::size_t bytes(const RouteArgs& args) {
    const BlockSums sums(args);
    const std::int64_t each =
        (args.score_sums ? sums.experts : 0) + (args.counts ? sums.experts : 0) + (args.z_sum ? 1 : 0);
    return static_cast<std::size_t>(sums.blocks * each) * sizeof(float);
  }
  void bind(const RouteArgs& args, std::byte* memory) {
    auto* next = reinterpret_cast<float*>(memory);
    const auto take = [&next](bool wanted, std::int64_t count) {
      float* const taken = wanted ? next : nullptr;
      next += wanted ? count : 0;
      return taken;
    };
    scores = take(static_cast<bool>(args.score_sums), blocks * experts);
    counts = reinterpret_cast<std::int32_t*>(take(static_cast<bool>(args.counts), blocks * experts));
    z = take(static_cast<bool>(args.z_sum), blocks);
  }
  RouteSums of(std::int64_t block) const {
    return {.scores = scores ? scores + block * experts : nullptr,
            .counts = counts ? counts + block * experts : nullptr,
            .z = z ? z + block : nullptr};
  }
};

// out [P,E] = for each part the sum of its blocks, in order.
template <class T>
void add_blocks(const PartBlocks& blocks, const T* sums, const Tensor& out) {
  const std::int64_t experts = out.dim(1), first = blocks.parts.first(), per_part = blocks.per_part();
  T* const totals = out.as<T>();
  std::fill_n(totals, count(out.shape), T{0});
  for (std::int64_t block = 0; block < blocks.count(); ++block) {
    T* const total = totals + (first + block / per_part) * experts;
    for (std::int64_t e = 0; e < experts; ++e) total[e] += sums[block * experts + e];
  }
}

const std::int32_t* checked_experts(const RouteBackArgs& args) {
  const auto* expert = args.experts.as<std::int32_t>();
  const std::int64_t experts = args.logits.dim(1);
  for (std::int64_t i = 0; i < count(args.experts.shape); ++i)
    require(expert[i] >= 0 && expert[i] < experts, "route_back: expert {} of row {} is none of {}", expert[i],
            i / args.rule.topk, experts);
  return expert;
}

}  // namespace

std::size_t CpuWorkspaceRules::workspace(const RouteArgs& args) const { return BlockSums::bytes(args); }

template <>
void CpuOps::compute(const RouteArgs& args) {
  const RouteRows rows{.logits = args.logits.as<float>(),
                       .bias = args.bias ? args.bias.as<float>() : nullptr,
                       .rows = args.rule.force_balance ? args.rows.as<std::int64_t>() : nullptr,
                       .experts = args.experts.as<std::int32_t>(),
                       .weights = args.weights.as<float>(),
                       .rule = rule_of(args.rule, args.logits.dim(1))};
  const PartBlocks blocks = route_blocks(args);
  BlockSums sums(args);
  sums.bind(args, workspace(BlockSums::bytes(args)).data());
  const auto kernel = kernels(isa_).route;
  pool_.parallel_for(blocks.count(), [&](std::int64_t block, int) {
    kernel(rows, sums.of(block), blocks.begin(block), blocks.end(block));
  });
  if (args.score_sums) add_blocks(blocks, sums.scores, args.score_sums);
  if (args.counts) add_blocks(blocks, sums.counts, args.counts);
  if (!args.z_sum) return;
  float z = 0;
  for (std::int64_t block = 0; block < blocks.count(); ++block) z += sums.z[block];
  *args.z_sum.as<float>() = z;
}

template <>
void CpuOps::compute(const RouteBackArgs& args) {
  const std::int64_t experts = args.logits.dim(1);
  const RouteBackRows rows{.logits = args.logits.as<float>(),
                           .experts = checked_experts(args),
                           .dweights = args.dweights.as<float>(),
                           .loads = args.loads ? args.loads.as<float>() : nullptr,
                           .part_rows = args.part_rows,
                           .first_row = args.first_row,
                           .z_scale = args.z_scale ? *args.z_scale.as<float>() * args.z_coefficient : 0.0f,
                           .dlogits = args.dlogits.as<float>(),
                           .rule = rule_of(args.rule, experts)};
  const auto kernel = kernels(isa_).back;
  run_blocks(pool_, row_blocks(args.logits.dim(0), experts),
             [&](std::int64_t begin, std::int64_t end) { kernel(rows, begin, end); });
}

// The remaining ops handle a few hundred numbers, on one thread.
template <>
void CpuOps::compute(const BalanceLossArgs& args) {
  const double factor = args.counts ? args.load_of_count() : args.load_of_share();
  const auto* counts = args.counts ? args.counts.as<std::int32_t>() : nullptr;
  const auto* shares = args.shares ? args.shares.as<float>() : nullptr;
  const auto* score_sums = args.score_sums.as<float>();
  auto* loads = args.loads.as<float>();
  const double scale = *args.scale.as<float>();
  double loss = 0;
  for (std::int64_t i = 0; i < count(args.score_sums.shape); ++i) {
    const double load = factor * (counts ? static_cast<double>(counts[i]) : static_cast<double>(shares[i]));
    loss += load * score_sums[i];
    loads[i] = (args.accumulate ? loads[i] : 0.0f) + static_cast<float>(scale * load);
  }
  auto& total = *args.loss.as<float>();
  total = static_cast<float>(total + loss);
}

template <>
void CpuOps::compute(const ExpertBiasArgs& args) {
  const auto* counts = args.counts.as<std::int32_t>();
  auto* bias = args.bias ? args.bias.as<float>() : nullptr;
  auto* shares = args.shares ? args.shares.as<float>() : nullptr;
  if (args.grad_factor && !std::isfinite(*args.grad_factor.as<float>())) bias = nullptr;
  const std::int64_t experts = args.counts.dim(0);
  std::int64_t sum = 0;
  for (std::int64_t e = 0; e < experts; ++e) sum += counts[e];
  for (std::int64_t e = 0; e < experts; ++e) {
    const std::int64_t scaled = counts[e] * experts;  // against the mean, without a division
    if (bias) bias[e] += scaled < sum ? args.rate : scaled > sum ? -args.rate : 0.0f;
    if (shares) shares[e] = sum == 0 ? 0.0f : static_cast<float>(counts[e] / static_cast<double>(sum));
  }
}

}  // namespace tera::cpu
