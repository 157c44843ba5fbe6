#include "tera/pipeline/stage_plan.h"

#include <algorithm>

#include "tera/base/error.h"
#include "tera/pipeline/check.h"

namespace tera {
namespace {

// Buffers in use now, and at most.
struct Use {
  int now = 0, peak = 0;
  void open() { peak = std::max(peak, ++now); }
  void close() { --now; }
};

struct ChunkUse {
  Use x, dy;
  Use& of(const Message& message) { return message.gradient ? dy : x; }
};

// Goes through the plan's actions and exchanges in order; who waits for whom does not matter for buffers.
std::vector<ChunkUse> count_buffers(const StagePlan& plan) {
  const Placement& placement = plan.placement;
  std::vector<ChunkUse> uses(static_cast<std::size_t>(placement.chunks));
  const auto chunk = [&](int which) -> ChunkUse& { return uses[static_cast<std::size_t>(which)]; };
  const auto target = [&](const Message& m) -> Use& { return chunk(placement.chunk_of(m.to_stage())).of(m); };
  for (std::size_t i = 0; i < plan.actions.size(); ++i) {
    for (const Message& message : plan.exchanges[i])
      if (placement.rank_of(message.from_stage) != plan.rank) target(message).open();
    const Action& action = plan.actions[i];
    const auto result = result_of(placement, plan.rank, action);
    if (result && !result->crosses_ranks(placement)) target(*result).open();
    const int stage = placement.virtual_stage(plan.rank, action.chunk);
    const bool has_x = stage > 0, has_dy = stage + 1 < placement.virtual_stages();
    if (has_x && (makes_gradient(action.act) || !plan.backward)) chunk(action.chunk).x.close();
    if (has_dy && (action.act == Act::W || action.act == Act::BW)) chunk(action.chunk).dy.close();
  }
  return uses;
}

// A schedule with its report and exchanges, of which cut() takes one rank's plan.
class CheckedSchedule {
 public:
  explicit CheckedSchedule(const PipelineSchedule& schedule)
      : schedule_(schedule), report_(check(schedule)), exchanges_(exchanges(schedule)) {}

  StagePlan cut(int rank) {  // once for each rank
    require(rank >= 0 && rank < schedule_.placement.stages, "rank {} of a pipeline of {}", rank,
            schedule_.placement.stages);
    const auto mine = static_cast<std::size_t>(rank);
    StagePlan plan{.placement = schedule_.placement,
                   .rank = rank,
                   .microbatches = schedule_.microbatches,
                   .backward = schedule_.backward,
                   .actions = schedule_.ranks[mine],
                   .exchanges = std::move(exchanges_[mine])};
    const auto uses = count_buffers(plan);
    for (std::size_t i = 0; i < uses.size(); ++i)
      plan.chunks.push_back({report_.ranks[mine].chunks[i].pools, uses[i].x.peak, uses[i].dy.peak});
    return plan;
  }

 private:
  const PipelineSchedule& schedule_;
  ScheduleReport report_;
  std::vector<std::vector<Exchange>> exchanges_;
};

}  // namespace

StagePlan make_stage_plan(const PipelineSchedule& schedule, int rank) { return CheckedSchedule(schedule).cut(rank); }

std::vector<StagePlan> make_stage_plans(const PipelineSchedule& schedule) {
  CheckedSchedule checked(schedule);
  std::vector<StagePlan> plans;
  for (int rank = 0; rank < schedule.placement.stages; ++rank) plans.push_back(checked.cut(rank));
  return plans;
}

StagePlan plan_alone(const Schedule& schedule) {
  int microbatches = 0;
  for (const Action& action : schedule) microbatches = std::max(microbatches, action.microbatch + 1);
  return make_stage_plan({.placement = {}, .microbatches = microbatches, .ranks = {schedule}}, 0);
}

StagePlan plan_forward_alone(int microbatches) { return make_stage_plan(forward_only({}, microbatches), 0); }

}  // namespace tera
