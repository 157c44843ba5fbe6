#include "tera/pipeline/exchange.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "tera/base/error.h"
#include "tera/parallel/timeline.h"

namespace tera {
namespace {

// The last of the actions that overlap, beginning with this one.
std::size_t last_of(const Schedule& actions, std::size_t first) { return first + (actions[first].with_next ? 1 : 0); }

class IdealSimulation {
 public:
  IdealSimulation(const PipelineSchedule& schedule, const ActionCosts& costs)
      : schedule_(schedule), costs_(costs), placement_(schedule.placement), free_at_(schedule.ranks.size()) {
    require(costs.F > 0 && costs.B > 0 && costs.W > 0 && costs.transfer >= 0,
            "actions take time: F {} B {} W {} transfer {}", costs.F, costs.B, costs.W, costs.transfer);
    arrival_.assign(index(2 * placement_.virtual_stages() * schedule.microbatches), unknown_time);
    times_.start.resize(schedule.ranks.size());
  }

  IdealTimes run() {
    for (bool progress = true; progress;) {
      progress = false;
      for (int rank = 0; rank < placement_.stages; ++rank)
        while (!at_end(rank) && step(rank)) progress = true;
    }
    for (int rank = 0; rank < placement_.stages; ++rank)
      if (!at_end(rank)) fail("the pipeline's schedule deadlocks: {}", who_waits());
    times_.makespan = *std::max_element(free_at_.begin(), free_at_.end());
    return std::move(times_);
  }

 private:
  const Action& next_action(int rank) const { return schedule_.ranks[index(rank)][times_.start[index(rank)].size()]; }
  bool at_end(int rank) const { return times_.start[index(rank)].size() == schedule_.ranks[index(rank)].size(); }

  double& arrival(const Message& m) { return arrival_[id(m)]; }
  std::size_t id(const Message& m) const {
    const int lane = (m.gradient ? placement_.virtual_stages() : 0) + m.from_stage;
    return index(lane * schedule_.microbatches + m.microbatch);
  }

  // Runs an action, or two that overlap; false: an input is missing.
  bool step(int rank) {
    const auto& actions = schedule_.ranks[index(rank)];
    const std::size_t first = times_.start[index(rank)].size();
    const std::size_t last = last_of(actions, first);
    double start = free_at_[index(rank)];
    for (std::size_t i = first; i <= last; ++i)
      if (const auto input = input_of(placement_, rank, actions[i])) {
        if (arrival(*input) == unknown_time) return false;
        start = std::max(start, arrival(*input));
      }
    double end = start;
    for (std::size_t i = first; i <= last; ++i) {
      times_.start[index(rank)].push_back(end);
      end += costs_.of(actions[i].act);
    }
    for (std::size_t i = first; i <= last; ++i)
      if (const auto result = result_of(placement_, rank, actions[i]))
        arrival(*result) = end + (result->crosses_ranks(placement_) ? costs_.transfer : 0);
    free_at_[index(rank)] = end;
    return true;
  }

  std::string who_waits() const {
    std::string text;
    for (int rank = 0; rank < placement_.stages; ++rank) {
      if (at_end(rank)) continue;
      const Action& action = waiting_action(rank);
      const auto input = input_of(placement_, rank, action);
      text += fmt::format("{}rank {} at {} (waits for its {} from rank {})", text.empty() ? "" : "; ", rank,
                          to_string(action, placement_), input->gradient ? "gradients" : "input",
                          placement_.rank_of(input->from_stage));
    }
    return text;
  }

  // The next action, or of two that overlap the one whose input is missing.
  const Action& waiting_action(int rank) const {
    const Action& next = next_action(rank);
    const auto input = input_of(placement_, rank, next);
    const bool waits = input && arrival_[id(*input)] == unknown_time;
    return waits || !next.with_next ? next : *(&next + 1);
  }

  const PipelineSchedule& schedule_;
  const ActionCosts& costs_;
  const Placement& placement_;
  std::vector<double> free_at_;  // per rank
  std::vector<double> arrival_;  // per message
  IdealTimes times_;
};

struct TimedMessage {
  double made_at;
  Message message;
  auto operator<=>(const TimedMessage&) const = default;
};

}  // namespace

std::string to_string(const Action& action, const Placement& placement) {
  constexpr std::array names{"F", "B", "W", "BW"};
  std::string text = fmt::format("{}{}", names[static_cast<std::size_t>(action.act)], action.microbatch);
  if (placement.chunks > 1) text += fmt::format(" of chunk {}", action.chunk);
  return text;
}

std::optional<Message> result_of(const Placement& placement, int rank, const Action& action) {
  if (action.act == Act::W) return std::nullopt;
  const Message message{makes_gradient(action.act), placement.virtual_stage(rank, action.chunk), action.microbatch};
  const bool exists = message.to_stage() >= 0 && message.to_stage() < placement.virtual_stages();
  return exists ? std::optional(message) : std::nullopt;
}

std::optional<Message> input_of(const Placement& placement, int rank, const Action& action) {
  const int stage = placement.virtual_stage(rank, action.chunk);
  if (action.act == Act::F && stage > 0) return Message{false, stage - 1, action.microbatch};
  if (makes_gradient(action.act) && stage + 1 < placement.virtual_stages())
    return Message{true, stage + 1, action.microbatch};
  return std::nullopt;  // the first stage reads tokens, the last one starts the gradients
}

IdealTimes ideal_times(const PipelineSchedule& schedule, const ActionCosts& costs) {
  return IdealSimulation(schedule, costs).run();
}

std::vector<std::vector<Exchange>> exchanges(const PipelineSchedule& schedule, const ActionCosts& costs) {
  const Placement& placement = schedule.placement;
  const IdealTimes times = ideal_times(schedule, costs);
  const auto end_of = [&](int rank, std::size_t i) {
    const auto& actions = schedule.ranks[index(rank)];
    const std::size_t last = last_of(actions, i);
    return times.start[index(rank)][last] + costs.of(actions[last].act);
  };
  const auto sent_by = [&](int rank, std::size_t i) -> std::optional<TimedMessage> {
    const auto result = result_of(placement, rank, schedule.ranks[index(rank)][i]);
    if (!result || !result->crosses_ranks(placement)) return std::nullopt;
    return TimedMessage{end_of(rank, i), *result};
  };

  std::vector<std::vector<TimedMessage>> received(schedule.ranks.size());  // per rank, later in order
  for (int rank = 0; rank < placement.stages; ++rank)
    for (std::size_t i = 0; i < schedule.ranks[index(rank)].size(); ++i)
      if (const auto sent = sent_by(rank, i))
        received[index(placement.rank_of(sent->message.to_stage()))].push_back(*sent);

  std::vector<std::vector<Exchange>> all(schedule.ranks.size());
  for (int rank = 0; rank < placement.stages; ++rank) {
    auto& mine = received[index(rank)];
    std::sort(mine.begin(), mine.end());
    const std::size_t actions = schedule.ranks[index(rank)].size();
    all[index(rank)].resize(actions + 1);
    std::size_t next = 0;
    for (std::size_t i = 0, last = 0; i < actions; i = last + 1) {
      last = last_of(schedule.ranks[index(rank)], i);
      Exchange &before = all[index(rank)][i], &after = all[index(rank)][last + 1];
      std::vector<TimedMessage> sends;  // F's before B's: so they are ordered
      for (std::size_t k = i; k <= last; ++k)
        if (const auto send = sent_by(rank, k)) sends.push_back(*send);
      const auto receive_until = [&](Exchange& exchange, const auto& comes_first) {
        for (; next < mine.size() && comes_first(mine[next]); ++next) exchange.push_back(mine[next].message);
      };
      if (sends.empty()) receive_until(before, [&](const TimedMessage& m) { return m.made_at <= end_of(rank, i); });
      for (const TimedMessage& send : sends) {
        receive_until(&send == &sends.front() ? before : after, [&](const TimedMessage& m) { return m < send; });
        after.push_back(send.message);
      }
    }
    require(next == mine.size(), "rank {} of the schedule ends before it has received everything", rank);
  }
  return all;
}

}  // namespace tera
