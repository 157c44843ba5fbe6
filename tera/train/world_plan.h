#pragma once
// A step of a whole world, rehearsed on one machine: ranks that differ only in their replica or tensor part have the
// same plan, so one rank for each pipeline stage tells all.

#include <optional>
#include <string>
#include <vector>

#include "tera/ops/workspace.h"
#include "tera/train/memory_plan.h"
#include "tera/train/rank_layout.h"

namespace tera {

// What a rank sends to a group in a step.
struct GroupTraffic {
  std::string name;
  int ranks = 1;  // of the group
  Traffic traffic;
};

struct StageRehearsal {
  int layers = 0;
  std::int64_t parameters = 0;  // of one rank of the stage, with padding
  MemoryPlan memory;            // likewise
  double flops = 0;             // likewise
  std::vector<GroupTraffic> groups;
};

// Rows of a microbatch that the experts of a layer have on one rank.
struct ExpertRoom {
  std::int64_t experts = 0;               // of the rank
  std::int64_t room = 0;                  // planned
  std::int64_t even = 0, worst_case = 0;  // that come when all experts are chosen as often, and at most
};
ExpertRoom expert_room_of(const Setup& setup);  // of a model that has experts

struct WorldPlan {
  std::int64_t parameters = 0;  // of the whole model
  StageLayout layout;
  double bubble = 0;  // part of the ranks' time in which they wait if all chunks take as long
  std::vector<StageRehearsal> stages;
  std::optional<ExpertRoom> experts;  // of a model that has some

  std::size_t largest_stage() const;  // by bytes; the first of equals
  double total_flops(const ParallelShape& parallel) const;
};

WorldPlan plan_world(const Setup& setup, const WorkspaceRules& rules);

}  // namespace tera
