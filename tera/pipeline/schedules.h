#pragma once
// Schedules of whole pipelines: for every rank the list of what it does. Each maker is a pure function of the shape, so
// all ranks make the same one; check.h proves it and says what it costs. Pictures: docs/pipeline.md.

#include <vector>

#include "tera/pipeline/placement.h"
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

// Each rank forwards until the first gradient is back, then alternates. Rank r keeps min(microbatches, stages-r).
// together: F and BW are played together where they alternate (Action::with_next). A pair takes longer than either, so
// that gradients come back later: rank r keeps 2*(stages-r) microbatches then.
PipelineSchedule one_f_one_b(int stages, int microbatches, bool together = false);

// Virtual stages in a loop: a rank plays group_size microbatches on its first chunk, the same ones on its second, and
// so on. A group is at least one microbatch per stage. Where the last group would be smaller than that (Megatron
// refuses it) the schedule is the one for more microbatches, less the actions of those that do not exist.
// together: as above; each rank keeps one chunk more.
PipelineSchedule interleaved(int stages, int chunks, int microbatches, int group_size, bool together = false);

// B and W apart, W where a rank would wait otherwise. No rank keeps more microbatches than rank 0 of 1F1B, together or
// not.
PipelineSchedule zero_bubble_h1(int stages, int microbatches, const ActionCosts& costs = {}, bool together = false);

// The same with two chunks per rank in a V. A chunk is half a stage, and a rank keeps at most 2*stages of them: again
// what rank 0 of 1F1B keeps, now on every rank. together: in the same order, by pair_up().
PipelineSchedule zero_bubble_v(int stages, int microbatches, const ActionCosts& costs = {}, bool together = false);

// The same order of actions, with each F and the B behind it played together where both can start at the same time
// anyway. Schedules whose order is not made for pairs get some that way.
PipelineSchedule pair_up(PipelineSchedule schedule, const ActionCosts& costs = {});

// Evaluation, logits, generation: forward in any placement.
PipelineSchedule forward_only(const Placement& placement, int microbatches);
PipelineSchedule forward_only(int stages, int chunks, int microbatches);

// For makers: refuses what is no pipeline.
void require_shape(const Placement& placement, int microbatches);

}  // namespace tera
