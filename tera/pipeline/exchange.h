#pragma once
// The point-to-point transfers between ranks of a pipeline, and their order, which follows from the schedule. The
// engine posts these exchanges, the checker simulates them.
//
// A result goes to another rank when the next virtual stage (F) or the previous one (B, BW) is there. All such messages
// have one order: the times at which they are made if transfers take no waiting (ties: by stage and microbatch). Every
// rank posts its sends and receives in that order, one exchange between two actions:
//   - the send of what the action before has made;
//   - the receives of what is made elsewhere until the action after ends (before the send where that is their order).
//     What the action after needs is among them or came earlier.
// An F and a B that overlap count as one action: nothing is posted between them.
// So no rank's transfer ever stands before one that it depends on: they may complete strictly in the order of posting
// (as they do on one queue of a device) and each may be a rendezvous; whoever is slow, there is no deadlock.

#include <optional>
#include <string>
#include <vector>

#include "tera/pipeline/schedules.h"

namespace tera {

// The activations that F or the gradients that B makes for the neighbouring virtual stage.
struct Message {
  bool gradient = false;
  std::int32_t from_stage = 0;  // the virtual stage that makes it
  std::int32_t microbatch = 0;

  std::int32_t to_stage() const { return from_stage + (gradient ? -1 : 1); }
  bool crosses_ranks(const Placement& placement) const {
    return placement.rank_of(from_stage) != placement.rank_of(to_stage());
  }
  auto operator<=>(const Message&) const = default;
};

// The message that an action makes for another virtual stage, and the one that it needs; none for W and at the ends.
std::optional<Message> result_of(const Placement& placement, int rank, const Action& action);
std::optional<Message> input_of(const Placement& placement, int rank, const Action& action);

// When each action starts if every result can be sent at once. Throws an Error that names the ranks and the actions
// they stand at where ranks wait for each other in a cycle. The schedule must have every action once.
struct IdealTimes {
  std::vector<std::vector<double>> start;  // per rank and action
  double makespan = 0;
};
IdealTimes ideal_times(const PipelineSchedule& schedule, const ActionCosts& costs = {});

// In the order of posting; a rank sends what comes from its own stages and receives the rest.
using Exchange = std::vector<Message>;

// Per rank: the exchange before each action, and one after the last. The same on all ranks only for the same costs.
std::vector<std::vector<Exchange>> exchanges(const PipelineSchedule& schedule, const ActionCosts& costs = {});

// "BW3 of chunk 1", for messages.
std::string to_string(const Action& action, const Placement& placement);

}  // namespace tera
