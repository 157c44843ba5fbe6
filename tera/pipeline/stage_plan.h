#pragma once
// One rank's part of a pipeline's schedule: its actions, its transfers and the numbers of its buffers. Pure data, made
// once; the engine executes it.

#include <vector>

#include "tera/pipeline/exchange.h"
#include "tera/pipeline/schedules.h"

namespace tera {

// How many arenas and buffers of each kind a chunk needs at one time.
struct ChunkPlan {
  Pools pools;  // arenas, per microbatch
  // Buffers for x and dy that come from the neighbouring virtual stages; 0 where there is none. A buffer is in use from
  // the posting of its receive (or, where the neighbour is on the same rank, from the action that makes its content) to
  // the end of the action that reads it last: B for x, W for dy, F when nothing is kept. Nothing is copied out of it:
  // a copy for B would need the same bytes in every activation arena.
  int x = 0, dy = 0;
  bool operator==(const ChunkPlan&) const = default;
};

struct StagePlan {
  Placement placement{};
  int rank = 0;
  int microbatches = 0;
  bool backward = true;  // false: F only, nothing is kept
  Schedule actions{};
  std::vector<Exchange> exchanges{};  // before each action, and one after the last
  std::vector<ChunkPlan> chunks{};
};

// Throws an Error unless the schedule is complete and free of deadlock (check.h).
StagePlan make_stage_plan(const PipelineSchedule& schedule, int rank);
std::vector<StagePlan> make_stage_plans(const PipelineSchedule& schedule);  // plans of all ranks, in the time of one

// A pipeline of one rank and chunk. The actions on each microbatch come in ascending order of microbatches.
StagePlan plan_alone(const Schedule& schedule);
StagePlan plan_forward_alone(int microbatches = 1);

}  // namespace tera
