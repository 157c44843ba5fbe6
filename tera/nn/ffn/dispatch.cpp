#include "tera/nn/ffn/dispatch.h"

#include <algorithm>
#include <cmath>

#include "tera/base/error.h"
#include "tera/ops/expert_rows.h"

namespace tera {

Dispatch::Dispatch(const DispatchSpec& spec, const ExpertParallel& parallel)
    : spec_(spec), parallel_(parallel), local_experts_(parallel.local_experts(spec.experts)) {}

// A token's choices are K different experts.
std::int64_t Dispatch::worst_case(std::int64_t tokens) const {
  return tokens * std::min(spec_.topk, local_experts_.size());
}

double Dispatch::even_share(std::int64_t tokens) const {
  return static_cast<double>(tokens * spec_.topk) * static_cast<double>(local_experts_.size()) /
         static_cast<double>(spec_.experts);
}

// The worst case where an overflow would not be reported.
std::int64_t Dispatch::row_capacity(const Run& run, std::int64_t tokens) const {
  return local_expert_capacity(run.mb.expert_overflow ? spec_.rank_capacity : 0, even_share(tokens),
                               worst_case(tokens));
}

void Dispatch::group(Run& run, Dispatched& d, std::int64_t rows, GroupRowsArgs args) const {
  d.offsets = run.stash.take(Life::f_to_w, shape(local_experts_.size() + 1), DType::i32, "moe.offsets");
  d.sources = run.stash.take(Life::f_to_w, shape(rows), DType::i32, "moe.sources");
  d.places = run.stash.take(Life::f_to_b, args.experts.shape, DType::i32, "moe.places");
  args.first_expert = local_experts_.begin;
  args.offsets = d.offsets;
  args.sources = d.sources;
  args.places = d.places;
  run.ops(args);
}

std::int64_t local_expert_capacity(double rank_capacity, double even, std::int64_t worst_case) {
  constexpr std::int64_t unit = 16;
  const double wanted = std::ceil(rank_capacity * even);
  if (wanted <= 0 || wanted >= static_cast<double>(worst_case)) return worst_case;
  return std::min((static_cast<std::int64_t>(wanted) + unit - 1) / unit * unit, worst_case);
}

void fail_capacity_overflow(const OverflowedRows& rows) {
  const double enough = std::ceil(100 * static_cast<double>(rows.arrived) / rows.even) / 100;
  fail_user(
      "rank {}: model.moe.expert_rank_capacity_factor={}: the experts of {} have room for {} rows, and {} came; {} "
      "would "
      "have held them, and 0 plans for the worst case",
      rows.rank, rows.rank_capacity, rows.block.empty() ? "a layer" : rows.block, rows.capacity, rows.arrived, enough);
}

std::int64_t padded_rows(double capacity, std::int64_t choices, std::int64_t experts, std::int64_t tokens) {
  const double wanted = std::ceil(capacity * static_cast<double>(choices) / static_cast<double>(experts));
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(std::min(wanted, static_cast<double>(tokens))));
}

// Without expert parallelism every rank of etp has all experts, and an all-to-all has no choice to make.
std::unique_ptr<Dispatch> make_dispatch(TokenDispatcher kind, const DispatchSpec& spec,
                                        const ExpertParallel& parallel) {
  const bool exchanges = kind == TokenDispatcher::alltoall && parallel.ep && parallel.ep->size() > 1;
  if (exchanges && !parallel.same_rows) return make_all_to_all_dispatch(spec, parallel);
  return make_gather_dispatch(spec, parallel);
}

}  // namespace tera
