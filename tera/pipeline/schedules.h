#pragma once
// Schedules of pipelines: 1F1B, interleaved 1F1B, zero bubble. For every rank a list of actions. Each maker is a pure
// function of the shape, so all ranks make the same one; check.h proves it and computes its cost. Pictures:
// docs/pipeline.md.

#include <vector>

#include "tera/parallel/placement.h"
#include "tera/pipeline/schedule.h"

namespace tera {

// In any unit of time. transfer: from one rank to another, after both are ready for it.
struct ActionCosts {
  double F = 1, B = 1, W = 1, transfer = 0;
  double of(Act act) const;
};

struct PipelineSchedule {
  Placement placement;
  int microbatches = 0;
  bool backward = true;  // false: F only, nothing is kept
  std::vector<Schedule> ranks{};
};

// 1F1B: each rank forwards until the first gradient is back (warm-up), then alternates. Rank r keeps
// min(microbatches, stages-r).
// together: F and BW overlap where they alternate (Action::with_next). A pair takes longer than either, so that
// gradients come back later: rank r keeps 2*(stages-r) microbatches then.
PipelineSchedule one_f_one_b(int stages, int microbatches, bool together = false);

// Interleaved 1F1B, virtual stages in a loop: a rank runs group_size microbatches on its first chunk, the same ones on
// its second, and so on. A group is at least one microbatch per stage. Where the last group would be smaller than that
// (Megatron refuses it) the schedule is the one for more microbatches, less the actions of those that do not exist.
// together: as in one_f_one_b(); each rank keeps one chunk more.
PipelineSchedule interleaved(int stages, int chunks, int microbatches, int group_size, bool together = false);

// Zero bubble ZB-H1: B and W are separate, W is where a rank would wait otherwise. No rank keeps more microbatches than
// rank 0 of 1F1B, together or not.
PipelineSchedule zero_bubble_h1(int stages, int microbatches, const ActionCosts& costs = {}, bool together = false);

// Zero bubble ZB-V: two chunks per rank, placed in a V. A chunk is half a stage, and a rank keeps at most 2*stages of
// them: every rank keeps what rank 0 of 1F1B does. together: the same order, with pair_up().
PipelineSchedule zero_bubble_v(int stages, int microbatches, const ActionCosts& costs = {}, bool together = false);

// Keeps the order of actions, and overlaps each F and the B after it where both can start at the same time anyway.
// Schedules whose order is not made for pairs get some that way.
PipelineSchedule pair_up(PipelineSchedule schedule, const ActionCosts& costs = {});

// Evaluation, logits, generation: forward in any placement.
PipelineSchedule forward_only(const Placement& placement, int microbatches);
PipelineSchedule forward_only(int stages, int chunks, int microbatches);

// For makers: refuses shapes that are no pipeline.
void require_shape(const Placement& placement, int microbatches);

}  // namespace tera
