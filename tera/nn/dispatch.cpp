#include "tera/nn/dispatch.h"

#include <algorithm>
#include <cmath>

#include "tera/base/error.h"

namespace tera {

Dispatch::Dispatch(const DispatchSpec& spec, const ExpertParallel& parallel)
    : spec_(spec), parallel_(parallel), held_(parallel.held(spec.experts)) {}

// A token chooses different experts.
std::int64_t Dispatch::worst_case(std::int64_t tokens) const { return tokens * std::min(spec_.topk, held_.size()); }

double Dispatch::even_share(std::int64_t tokens) const {
  return static_cast<double>(tokens * spec_.topk) * static_cast<double>(held_.size()) /
         static_cast<double>(spec_.experts);
}

// Where nobody would be told of rows that find no room, there is room for all.
std::int64_t Dispatch::room(const Run& run, std::int64_t tokens) const {
  return expert_room(run.mb.expert_overflow ? spec_.rank_capacity : 0, even_share(tokens), worst_case(tokens));
}

void Dispatch::group(Run& run, Dispatched& d, std::int64_t room, GroupRowsArgs args) const {
  d.offsets = run.stash.take(Life::f_to_w, shape(held_.size() + 1), DType::i32, "moe.offsets");
  d.sources = run.stash.take(Life::f_to_w, shape(room), DType::i32, "moe.sources");
  d.places = run.stash.take(Life::f_to_b, args.experts.shape, DType::i32, "moe.places");
  args.first_expert = held_.begin;
  args.offsets = d.offsets;
  args.sources = d.sources;
  args.places = d.places;
  run.ops.group_rows(args);
}

std::int64_t expert_room(double rank_capacity, double even, std::int64_t worst_case) {
  constexpr std::int64_t unit = 16;
  const double wanted = std::ceil(rank_capacity * even);
  if (wanted <= 0 || wanted >= static_cast<double>(worst_case)) return worst_case;
  return std::min((static_cast<std::int64_t>(wanted) + unit - 1) / unit * unit, worst_case);
}

void fail_no_room(const RowsWithoutRoom& rows) {
  const double enough = std::ceil(100 * static_cast<double>(rows.came) / rows.even) / 100;
  fail_user(
      "rank {}: model.moe.expert_rank_capacity_factor={}: the experts of {} have room for {} rows, and {} came; {} "
      "would "
      "have held them, and 0 plans for the worst case",
      rows.rank, rows.rank_capacity, rows.block.empty() ? "a layer" : rows.block, rows.room, rows.came, enough);
}

std::int64_t padded_rows(double capacity, std::int64_t choices, std::int64_t experts, std::int64_t tokens) {
  const double wanted = std::ceil(capacity * static_cast<double>(choices) / static_cast<double>(experts));
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(std::min(wanted, static_cast<double>(tokens))));
}

// With all experts on every rank of etp there is nobody to choose among.
std::unique_ptr<Dispatch> make_dispatch(TokenDispatcher kind, const DispatchSpec& spec,
                                        const ExpertParallel& parallel) {
  const bool exchanges = kind == TokenDispatcher::alltoall && parallel.ep && parallel.ep->size() > 1;
  if (exchanges && !parallel.same_rows) return make_all_to_all_dispatch(spec, parallel);
  return make_gather_dispatch(spec, parallel);
}

}  // namespace tera
