// Zero-bubble schedules (ZB-H1, ZB-V): a hand-made order, which is optimal where F, B and W take the same time, and
// list scheduling for other times: whenever a rank is free it takes the action of the highest priority that can start,
// and W, for which nobody waits, when there is no other. Several priority rules are tried; the shortest schedule is
// kept.

#include <algorithm>
#include <array>
#include <limits>
#include <set>

#include "tera/base/error.h"
#include "tera/parallel/timeline.h"
#include "tera/pipeline/exchange.h"
#include "tera/pipeline/schedules.h"

namespace tera {
namespace {

struct Policy {
  bool forward_first = false;      // F before B, as far as memory goes
  bool first_chunk_first = false;  // false: the last chunk first
  double wait_factor = 0;          // a rank waits for an F or B up to this fraction of a W's time
};

class ListScheduler {
 public:
  // limits: (chunk, microbatch) pairs that may be between F and the end of W, per rank and chunk.
  ListScheduler(const Placement& placement, int microbatches, const ActionCosts& costs,
                std::vector<std::vector<int>> limits)
      : placement_(placement), microbatches_(microbatches), costs_(costs), limits_(std::move(limits)) {}

  PipelineSchedule make(const Policy& policy);

 private:
  struct Chunk {
    int f = 0, b = 0, w = 0;         // microbatches started
    std::vector<double> f_at, b_at;  // when the input of F and B of each microbatch is here
  };
  struct Rank {
    double free_at = 0;
    std::vector<Chunk> chunks;
  };

  void reset();
  Chunk& chunk_of(int virtual_stage) {
    return ranks_[index(placement_.rank_of(virtual_stage))].chunks[index(placement_.chunk_of(virtual_stage))];
  }
  double ready_at(int rank, int chunk, Act act) const;
  Action choose(int rank, double now, const Policy& policy) const;
  void start(int rank, const Action& action, double now);

  Placement placement_;
  int microbatches_;
  ActionCosts costs_;
  std::vector<std::vector<int>> limits_;
  std::vector<Rank> ranks_;
  std::set<double> events_;  // when something may become possible
};

constexpr Action nothing{Act::F, -1};

void ListScheduler::reset() {
  const std::vector<double> not_yet(index(microbatches_), never);
  ranks_.assign(index(placement_.stages),
                Rank{0, std::vector<Chunk>(index(placement_.chunks), {0, 0, 0, not_yet, not_yet})});
  std::fill(chunk_of(0).f_at.begin(), chunk_of(0).f_at.end(), 0);
  events_ = {0};
}

// When the next microbatch of this kind could start, as far as known.
double ListScheduler::ready_at(int rank, int which, Act act) const {
  const Chunk& chunk = ranks_[index(rank)].chunks[index(which)];
  const int next = act == Act::F ? chunk.f : act == Act::B ? chunk.b : chunk.w;
  if (next == microbatches_) return never;
  if (act == Act::W) return chunk.w < chunk.b ? 0 : never;
  if (act == Act::B) return chunk.b_at[index(next)];
  return chunk.f - chunk.w < limits_[index(rank)][index(which)] ? chunk.f_at[index(next)] : never;
}

Action ListScheduler::choose(int rank, double now, const Policy& policy) const {
  const auto& chunks = ranks_[index(rank)].chunks;
  const std::array<Act, 3> order =
      policy.forward_first ? std::array{Act::F, Act::B, Act::W} : std::array{Act::B, Act::F, Act::W};
  double next_ready = never;
  for (const Act act : order) {
    if (act == Act::W && next_ready < now + policy.wait_factor * costs_.W) return nothing;
    for (int i = 0; i < placement_.chunks; ++i) {
      const int chunk = policy.first_chunk_first ? i : placement_.chunks - 1 - i;
      const double ready = ready_at(rank, chunk, act);
      const Chunk& c = chunks[index(chunk)];
      if (ready <= now) return {act, act == Act::F ? c.f : act == Act::B ? c.b : c.w, chunk};
      next_ready = std::min(next_ready, ready);
    }
  }
  return nothing;
}

void ListScheduler::start(int rank, const Action& action, double now) {
  const double end = now + costs_.of(action.act);
  ranks_[index(rank)].free_at = end;
  events_.insert(end);
  Chunk& chunk = ranks_[index(rank)].chunks[index(action.chunk)];
  ++(action.act == Act::F ? chunk.f : action.act == Act::B ? chunk.b : chunk.w);
  if (action.act == Act::W) return;
  const int stage = placement_.virtual_stage(rank, action.chunk);
  const bool is_last = action.act == Act::F && stage + 1 == placement_.virtual_stages();
  const int to = action.act == Act::F ? (is_last ? stage : stage + 1) : stage - 1;
  if (to < 0) return;
  const double there = end + (placement_.rank_of(to) == rank ? 0 : costs_.transfer);
  Chunk& target = chunk_of(to);
  (action.act == Act::F && !is_last ? target.f_at : target.b_at)[index(action.microbatch)] = there;
  events_.insert(there);
}

PipelineSchedule ListScheduler::make(const Policy& policy) {
  reset();
  PipelineSchedule result{placement_, microbatches_};
  result.ranks.resize(index(placement_.stages));
  for (; !events_.empty(); events_.erase(events_.begin())) {
    const double now = *events_.begin();
    for (int rank = 0; rank < placement_.stages; ++rank) {
      if (ranks_[index(rank)].free_at > now) continue;
      const Action action = choose(rank, now, policy);
      if (action == nothing) continue;
      start(rank, action, now);
      result.ranks[index(rank)].push_back(action);
    }
  }
  return result;
}

// The hand-made order for F, B and W of one length: 1F1B in which rank r is r weight gradients late. Every rank keeps
// as many microbatches as rank 0, and the last one, whose gradients all others wait for, makes them early.
PipelineSchedule late_weights(int stages, int microbatches) {
  PipelineSchedule result{{stages}, microbatches};
  for (int rank = 0; rank < stages; ++rank) {
    Schedule schedule;
    const int warmup = std::min(stages - rank, microbatches);
    for (int i = 0; i < warmup; ++i) schedule.push_back({Act::F, i});
    for (int i = 0; i < microbatches; ++i) {
      schedule.push_back({Act::B, i});
      if (i >= rank) schedule.push_back({Act::W, i - rank});
      if (i + warmup < microbatches) schedule.push_back({Act::F, i + warmup});
    }
    for (int i = std::max(0, microbatches - rank); i < microbatches; ++i) schedule.push_back({Act::W, i});
    result.ranks.push_back(std::move(schedule));
  }
  return result;
}

// 1F1B whose F and B overlap, and in which rank r is `later` x r weight gradients late.
PipelineSchedule late_weights_of_pairs(int stages, int microbatches, int later) {
  PipelineSchedule result{{stages}, microbatches};
  for (int rank = 0; rank < stages; ++rank) {
    Schedule schedule;
    const int warmup = std::min(2 * (stages - 1 - rank) + 1, microbatches), late = later * rank;
    for (int i = 0; i < warmup; ++i) schedule.push_back({Act::F, i});
    for (int i = 0; i < microbatches; ++i) {
      if (i + warmup < microbatches) schedule.push_back({Act::F, i + warmup, 0, /*with_next=*/true});
      schedule.push_back({Act::B, i});
      if (i >= late) schedule.push_back({Act::W, i - late});
    }
    for (int i = std::max(0, microbatches - late); i < microbatches; ++i) schedule.push_back({Act::W, i});
    result.ranks.push_back(std::move(schedule));
  }
  return result;
}

// The hand-made order in a V for F, B and W of one length. a is the way down, b the way up, to the loss on rank 0. Rank
// r fills the time until b reaches it with forwards of a, and has 2r actions between F and B of b. The steady state
// takes F, B, W of a, then of b.
class HandMadeV {
 public:
  HandMadeV(int stages, int rank, int microbatches) : microbatches_(microbatches) {
    for (int i = 0; i < 2 * (stages - rank) - 1; ++i) append({{Act::F, 0}});
    for (int i = 0; i < rank; ++i) append({{Act::F, 1}, {Act::F, 0}});
    for (int i = 0; i < stages - rank; ++i) append({{Act::F, 1}, {Act::B, 1}, {Act::W, 1}});
    while (!ended(Act::F, 1)) append({{Act::B, 0}, {Act::W, 0}, {Act::F, 0}, {Act::F, 1}, {Act::B, 1}, {Act::W, 1}});
    for (int i = 0; i < rank; ++i) append({{Act::B, 0}, {Act::B, 1}});  // W waits: others need these gradients
    for (int i = 0; i < stages - rank; ++i) append({{Act::B, 0}, {Act::W, 0}});
    while (!ended(Act::W, 1)) append({{Act::W, 1}});
    while (!ended(Act::W, 0)) append({{Act::W, 0}});
  }
  Schedule schedule;

 private:
  struct Step {
    Act act;
    int chunk;
  };
  int& next(Act act, int chunk) { return next_[static_cast<std::size_t>(act)][index(chunk)]; }
  bool ended(Act act, int chunk) { return next(act, chunk) == microbatches_; }
  void append(std::initializer_list<Step> steps) {
    for (const auto [act, chunk] : steps)
      if (!ended(act, chunk)) schedule.push_back({act, next(act, chunk)++, chunk});
  }
  int microbatches_;
  std::array<std::array<int, 2>, 3> next_{};
};

// The order needs 2*stages-1 microbatches: it is made for so many, less the actions of those that do not exist.
PipelineSchedule hand_made_v(int stages, int microbatches) {
  PipelineSchedule result{{stages, 2, PlacementKind::v}, microbatches};
  for (int rank = 0; rank < stages; ++rank) {
    result.ranks.push_back(HandMadeV(stages, rank, std::max(microbatches, 2 * stages - 1)).schedule);
    std::erase_if(result.ranks.back(), [&](const Action& action) { return action.microbatch >= microbatches; });
  }
  return result;
}

// Keeps the shortest schedule of those that are made.
struct Best {
  void offer(PipelineSchedule candidate, const ActionCosts& costs) {
    const double takes = ideal_times(candidate, costs).makespan;
    if (takes >= makespan * (1 - 1e-12)) return;
    makespan = takes;
    schedule = std::move(candidate);
  }
  double makespan = never;
  PipelineSchedule schedule;
};

void try_policies(Best& best, ListScheduler& scheduler, const ActionCosts& costs) {
  for (const bool forward_first : {false, true})
    for (const bool first_chunk_first : {false, true})
      for (const double wait_factor : {0.0, 1.0})
        best.offer(scheduler.make({forward_first, first_chunk_first, wait_factor}), costs);
}

// The last rank waits for the first forward to reach it and then has all its actions to run.
double least_makespan(const Placement& placement, int microbatches, const ActionCosts& costs) {
  return (placement.stages - 1) * (costs.F + costs.transfer) +
         placement.chunks * microbatches * (costs.F + costs.B + costs.W);
}

}  // namespace

PipelineSchedule zero_bubble_h1(int stages, int microbatches, const ActionCosts& costs, bool together) {
  const Placement placement{stages};
  require_shape(placement, microbatches);
  Best best;
  if (together) {
    for (const int later : {0, 1, 2}) best.offer(late_weights_of_pairs(stages, microbatches, later), costs);
    return std::move(best.schedule);
  }
  best.offer(late_weights(stages, microbatches), costs);
  ListScheduler scheduler(placement, microbatches, costs, std::vector(index(stages), std::vector{stages}));
  try_policies(best, scheduler, costs);
  return std::move(best.schedule);
}

// Several divisions of a rank's 2*stages chunks in flight between both arms of the V are tried: later ranks keep more
// of the way up.
PipelineSchedule zero_bubble_v(int stages, int microbatches, const ActionCosts& costs, bool together) {
  if (together) return pair_up(zero_bubble_v(stages, microbatches, costs), costs);
  const Placement placement{stages, 2, PlacementKind::v};
  require_shape(placement, microbatches);
  const double goal = least_makespan(placement, microbatches, costs) * (1 + 1e-9);
  Best best;
  best.offer(hand_made_v(stages, microbatches), costs);
  for (int least = 1; least <= stages && best.makespan > goal; least *= 2) {
    std::vector<std::vector<int>> limits;
    for (int rank = 0; rank < stages; ++rank) {
      const int up = std::min(least + rank, stages);
      limits.push_back({2 * stages - up, up});
    }
    ListScheduler scheduler(placement, microbatches, costs, std::move(limits));
    try_policies(best, scheduler, costs);
  }
  return std::move(best.schedule);
}

}  // namespace tera
