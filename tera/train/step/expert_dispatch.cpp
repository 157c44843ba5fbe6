#include "tera/train/step/expert_dispatch.h"

#include <algorithm>

#include "tera/nn/ffn/dispatch.h"
#include "tera/plan/world_plan.h"

namespace tera {

ExpertDispatch::ExpertDispatch(const Setup& setup, const RankLayout& layout)
    : StepFeature(FeatureOrder::expert_dispatch),
      setup_(setup),
      offsets_(setup.model.moe->dispatcher == TokenDispatcher::alltoall
                   ? layout.groups.etp_ep.size() * (setup.model.moe->experts + 1)
                   : 0),
      may_overflow_(setup.model.moe->rank_capacity_factor > 0) {}

void ExpertDispatch::describe(StepBoard& board) {
  board_ = &board;
  if (may_overflow_)
    overflow_ = board.scalars.add({.name = "expert_overflow", .combine = Combine::per_rank, .in_evaluation = true});
}

void ExpertDispatch::allocate_host(Device& device) {
  if (offsets_ == 0) return;
  const std::span<std::byte> host = device.allocate_host(static_cast<std::size_t>(offsets_) * sizeof(std::int32_t));
  host_offsets_ = {reinterpret_cast<std::int32_t*>(host.data()), static_cast<std::size_t>(offsets_)};
}

void ExpertDispatch::attach(std::int64_t /*index*/, MicroBatch& batch) {
  if (may_overflow_) batch.expert_overflow = board_->scalars.slot(overflow_);
  batch.expert_offsets = host_offsets_;
}

// Rows over the expert capacity were dropped, so the step was not the one that was asked for. Every rank throws the
// same error.
void ExpertDispatch::read(const StepReading& reading, StepScalars::When /*of*/) {
  if (!may_overflow_) return;
  std::int64_t worst = 0;
  double overflow = 0;
  for (std::size_t rank = 0; rank < reading.count("expert_overflow"); ++rank) {
    const double rows = reading.number_at("expert_overflow", rank);
    if (rows > overflow) worst = static_cast<std::int64_t>(rank);
    overflow = std::max(overflow, rows);
  }
  if (overflow == 0) return;
  const ExpertCapacity planned = expert_capacity_of(setup_);
  fail_capacity_overflow({.rank_capacity = setup_.model.moe->rank_capacity_factor,
                          .rank = worst,
                          .arrived = planned.rows + static_cast<std::int64_t>(overflow),
                          .capacity = planned.rows,
                          .even = static_cast<double>(std::max<std::int64_t>(planned.balanced, 1))});
}

}  // namespace tera
