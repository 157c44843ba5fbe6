#pragma once
// The memory, traffic and FLOPs of a step of all ranks, rehearsed on one machine: ranks that differ only in their
// data-parallel replica or tensor-parallel shard have the same plan, so one rank of each pipeline stage is rehearsed.

#include <optional>
#include <string>
#include <vector>

#include "tera/ops/workspace.h"
#include "tera/plan/memory_plan.h"
#include "tera/train/rank_layout.h"

namespace tera {

// What a rank sends to a group in a step.
struct GroupTraffic {
  std::string name;
  int ranks = 1;  // size of the group
  Traffic traffic;
};

struct StageRehearsal {
  int layers = 0;
  std::int64_t parameters = 0;  // parameters on one rank of the stage, padding included
  MemoryPlan memory;            // memory of one rank
  double flops = 0;             // FLOPs of one rank in a step
  std::vector<GroupTraffic> groups;
};

// Rows of a microbatch that the experts of a layer receive on one rank.
struct ExpertCapacity {
  std::int64_t experts = 0;                   // experts on the rank
  std::int64_t rows = 0;                      // planned: the capacity
  std::int64_t balanced = 0, worst_case = 0;  // rows that arrive under a balanced load, and at most
};
ExpertCapacity expert_capacity_of(const Setup& setup);  // MoE models only

struct WorldPlan {
  std::int64_t parameters = 0;  // parameters of the full model
  StageLayout layout;
  double bubble = 0;  // pipeline bubble: fraction of the time that ranks idle if all chunks take equally long
  std::vector<StageRehearsal> stages;
  std::optional<ExpertCapacity> experts;  // MoE models only

  std::size_t largest_stage() const;  // by bytes; of equal ones the first
  double total_flops(const ParallelShape& parallel) const;
};

WorldPlan plan_world(const Setup& setup, const WorkspaceRules& rules);

}  // namespace tera
