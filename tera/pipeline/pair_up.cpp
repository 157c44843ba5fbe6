// Finds pairs of an F and a B that can overlap, by simulating the schedule in the order of time: where a rank starts an
// F, it pairs the B after it if that could start as well. All inputs of both have been made by then, so the result
// cannot deadlock; a pair that would have to wait for an input is not made.

#include <algorithm>
#include <limits>

#include "tera/base/error.h"
#include "tera/parallel/timeline.h"
#include "tera/pipeline/exchange.h"

namespace tera {
namespace {

class Pairer {
 public:
  Pairer(PipelineSchedule& schedule, const ActionCosts& costs)
      : schedule_(schedule),
        costs_(costs),
        placement_(schedule.placement),
        next_(schedule.ranks.size()),
        free_at_(schedule.ranks.size()) {
    made_at_.assign(index(2 * placement_.virtual_stages() * schedule.microbatches), never);
  }

  void run() {
    for (;;) {
      int first = -1;
      double start = never;
      for (int rank = 0; rank < placement_.stages; ++rank)
        if (const double could = start_of(rank); could < start) {
          first = rank;
          start = could;
        }
      if (first < 0) return;
      start_next(first, start);
    }
  }

 private:
  double& made_at(const Message& m) {
    const int lane = (m.gradient ? placement_.virtual_stages() : 0) + m.from_stage;
    return made_at_[index(lane * schedule_.microbatches + m.microbatch)];
  }

  // When an action's input is here, as far as it is known.
  double ready_at(int rank, const Action& action) {
    const auto input = input_of(placement_, rank, action);
    return input ? made_at(*input) + (input->crosses_ranks(placement_) ? costs_.transfer : 0) : 0;
  }

  double start_of(int rank) {
    const Schedule& actions = schedule_.ranks[index(rank)];
    const std::size_t next = next_[index(rank)];
    if (next == actions.size()) return never;
    return std::max(free_at_[index(rank)], ready_at(rank, actions[next]));
  }

  void start_next(int rank, double start) {
    Schedule& actions = schedule_.ranks[index(rank)];
    const std::size_t next = next_[index(rank)];
    Action& action = actions[next];
    action.with_next = next + 1 < actions.size() && can_overlap(rank, action, actions[next + 1], start);
    const std::size_t end = next + (action.with_next ? 2 : 1);
    double& free_at = free_at_[index(rank)] = start;
    for (std::size_t i = next; i < end; ++i) free_at += costs_.of(actions[i].act);
    for (std::size_t i = next; i < end; ++i)
      if (const auto result = result_of(placement_, rank, actions[i])) made_at(*result) = free_at;
    next_[index(rank)] = end;
  }

  bool can_overlap(int rank, const Action& f, const Action& b, double start) {
    const bool same = f.microbatch == b.microbatch && f.chunk == b.chunk;
    return f.act == Act::F && makes_gradient(b.act) && !same && ready_at(rank, b) <= start;
  }

  PipelineSchedule& schedule_;
  const ActionCosts& costs_;
  const Placement placement_;
  std::vector<std::size_t> next_;  // per rank: action
  std::vector<double> free_at_;    // per rank
  std::vector<double> made_at_;    // per message
};

}  // namespace

PipelineSchedule pair_up(PipelineSchedule schedule, const ActionCosts& costs) {
  require(schedule.backward, "a schedule without backward has nothing to pair");
  Pairer(schedule, costs).run();
  return schedule;
}

}  // namespace tera
