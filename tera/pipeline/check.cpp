#include "tera/pipeline/check.h"

#include <algorithm>
#include <array>
#include <span>

#include "tera/base/error.h"
#include "tera/parallel/timeline.h"
#include "tera/pipeline/exchange.h"

namespace tera {
namespace {

// Checks each rank by itself: every action is there once, in order.
class RankOrder {
 public:
  RankOrder(const PipelineSchedule& schedule, int rank) : schedule_(schedule), rank_(rank) {}

  std::vector<ChunkNeeds> check_chunks() const {
    const int chunks = schedule_.placement.chunks;
    check_pairs();
    std::vector<Schedule> by_chunk(index(chunks));
    for (const auto& action : schedule_.ranks[index(rank_)]) {
      require(action.chunk >= 0 && action.chunk < chunks, "rank {} of the schedule names chunk {} of {}", rank_,
              action.chunk, chunks);
      by_chunk[index(action.chunk)].push_back(action);
    }
    std::vector<ChunkNeeds> needs(index(chunks));
    for (int chunk = 0; chunk < chunks; ++chunk) {
      check_ascending(by_chunk[index(chunk)]);
      needs[index(chunk)].pools = pools_of(by_chunk[index(chunk)]);
    }
    return needs;
  }

 private:
  void check_ascending(const Schedule& of_chunk) const {
    std::array<int, 3> next{};  // next microbatch of F, B and W
    for (const auto& action : of_chunk) {
      const auto expect = [&](Act act) {
        int& due = next[static_cast<std::size_t>(act)];
        if (action.microbatch != due)
          fail("rank {} of the schedule plays {} where microbatch {} is next", rank_,
               to_string(action, schedule_.placement), due);
        ++due;
      };
      if (action.act == Act::F || makes_gradient(action.act)) expect(action.act == Act::F ? Act::F : Act::B);
      if (action.act == Act::W || action.act == Act::BW) expect(Act::W);
    }
  }

  void check_pairs() const {
    const Schedule& actions = schedule_.ranks[index(rank_)];
    for (std::size_t i = 0; i < actions.size(); ++i) {
      if (!actions[i].with_next) continue;
      require(actions[i].act == Act::F && i + 1 < actions.size() && makes_gradient(actions[i + 1].act) &&
                  !actions[i + 1].with_next,
              "rank {} of the schedule plays {} together with what is no B", rank_,
              to_string(actions[i], schedule_.placement));
      require(actions[i].microbatch != actions[i + 1].microbatch || actions[i].chunk != actions[i + 1].chunk,
              "rank {} of the schedule plays {} together with its own gradient", rank_,
              to_string(actions[i], schedule_.placement));
    }
  }

  Pools pools_of(const Schedule& of_chunk) const {
    if (schedule_.backward) return tera::check(of_chunk, schedule_.microbatches);
    const bool only_f = std::all_of(of_chunk.begin(), of_chunk.end(), [](const Action& a) { return a.act == Act::F; });
    require(only_f, "rank {} of a schedule without backward has other actions than F", rank_);
    require(static_cast<int>(of_chunk.size()) == schedule_.microbatches,
            "rank {} of the schedule leaves {} of {} unplayed", rank_,
            schedule_.microbatches - static_cast<int>(of_chunk.size()), schedule_.microbatches);
    return {.f_to_b = 1};
  }

  const PipelineSchedule& schedule_;
  int rank_;
};

int chunks_in_flight(const Schedule& actions) {
  int now = 0, max_in_flight = 0;
  for (const auto& action : actions) {
    now += action.act == Act::F ? 1 : 0;
    max_in_flight = std::max(max_in_flight, now);
    now -= action.act == Act::W || action.act == Act::BW ? 1 : 0;
  }
  return max_in_flight;
}

// Simulates all ranks together. The order of each rank by itself must have been checked.
class Simulation {
 public:
  Simulation(const PipelineSchedule& schedule, const ActionCosts& costs,
             const std::vector<std::vector<Exchange>>& posts)
      : schedule_(schedule), costs_(costs), placement_(schedule.placement), posts_(posts) {
    done_.assign(index(2 * placement_.virtual_stages() * schedule.microbatches), unknown_time);
    ranks_.resize(index(placement_.stages));
    for (auto& rank : ranks_) rank.chunks.resize(index(placement_.chunks));
  }

  void run() {
    for (bool progress = true; progress;) {
      progress = false;
      for (int rank = 0; rank < placement_.stages; ++rank)
        while (!at_end(rank) && step(rank)) progress = true;
    }
    for (int rank = 0; rank < placement_.stages; ++rank)
      if (!at_end(rank)) fail("the pipeline's schedule deadlocks: {}", who_waits());
  }

  struct Chunk {
    int received_x = 0, received_dy = 0;  // now
    int max_x = 0, max_dy = 0;
  };
  struct Posted {
    Message message;
    double at;
  };
  struct Rank {
    std::size_t next = 0;       // action
    bool posted = false;        // the exchange before it
    double free_at = 0;         // end of the action before
    std::vector<double> start;  // start times of the actions so far
    std::vector<Chunk> chunks;
    std::vector<Posted> queue;  // all transfers posted
    std::size_t done = 0;       // how many of the queue are done
    double last_done = 0;
  };
  const Rank& rank(int which) const { return ranks_[index(which)]; }

  double makespan() const {
    double last = 0;
    for (const auto& rank : ranks_) last = std::max(last, rank.free_at);
    return last;
  }

 private:
  bool at_end(int rank) const { return ranks_[index(rank)].next == schedule_.ranks[index(rank)].size(); }
  const Action& next_action(int rank) const { return schedule_.ranks[index(rank)][ranks_[index(rank)].next]; }

  double& done(const Message& m) { return done_[id(m)]; }
  double done(const Message& m) const { return done_[id(m)]; }
  std::size_t id(const Message& m) const {
    const int lane = (m.gradient ? placement_.virtual_stages() : 0) + m.from_stage;
    return index(lane * schedule_.microbatches + m.microbatch);
  }

  void post(int which, const Exchange& exchange) {
    Rank& me = ranks_[index(which)];
    me.posted = true;
    for (const auto& message : exchange) {
      me.queue.push_back({message, me.free_at});
      if (placement_.rank_of(message.from_stage) == which) continue;
      Chunk& chunk = me.chunks[index(placement_.chunk_of(message.to_stage()))];
      if (message.gradient)
        chunk.max_dy = std::max(chunk.max_dy, ++chunk.received_dy);
      else
        chunk.max_x = std::max(chunk.max_x, ++chunk.received_x);
    }
    transfer(which);
  }

  // Completes transfers of this rank for as long as its first one is also the first in the peer's queue.
  void transfer(int which) {
    Rank& me = ranks_[index(which)];
    while (me.done < me.queue.size()) {
      const auto& [message, at] = me.queue[me.done];
      const int from = placement_.rank_of(message.from_stage), to = placement_.rank_of(message.to_stage());
      Rank& peer = ranks_[index(from == which ? to : from)];
      if (peer.done == peer.queue.size() || peer.queue[peer.done].message != message) return;
      const double moved = std::max(at, peer.queue[peer.done].at) + costs_.transfer;
      me.last_done = peer.last_done = done(message) = std::max({moved, me.last_done, peer.last_done});
      ++me.done;
      ++peer.done;
      transfer(from == which ? to : from);
    }
  }

  // The chunk's previous result, which must have been sent before this action makes its own.
  std::optional<Message> pending_send(int rank, const Action& action) const {
    auto send = result_of(placement_, rank, action);
    if (!send || !send->crosses_ranks(placement_) || send->microbatch == 0) return std::nullopt;
    --send->microbatch;  // microbatches ascend
    return send;
  }

  // The next action, and the one that overlaps it.
  std::span<const Action> next_actions(int rank) const {
    return {&next_action(rank), next_action(rank).with_next ? std::size_t{2} : std::size_t{1}};
  }

  // Returns whether anything happened.
  bool step(int which) {
    Rank& me = ranks_[index(which)];
    const bool arrives = !me.posted;
    if (arrives) post(which, posts_[index(which)][me.next]);
    double start = me.free_at;
    for (const Action& action : next_actions(which))
      for (const auto& awaited : {input_of(placement_, which, action), pending_send(which, action)}) {
        if (!awaited) continue;
        if (done(*awaited) == unknown_time) return arrives;
        start = std::max(start, done(*awaited));
      }
    me.free_at = start;
    for (const Action& action : next_actions(which)) {
      consume_input(which, action);
      me.start.push_back(me.free_at);
      me.free_at += costs_.of(action.act);
    }
    for (const Action& action : next_actions(which)) {
      const auto result = result_of(placement_, which, action);
      if (result && !result->crosses_ranks(placement_)) done(*result) = me.free_at;
    }
    me.next += next_actions(which).size();
    me.posted = false;
    if (at_end(which)) post(which, posts_[index(which)][me.next]);
    return true;
  }

  void consume_input(int which, const Action& action) {
    const auto input = input_of(placement_, which, action);
    if (!input || !input->crosses_ranks(placement_)) return;
    Chunk& chunk = ranks_[index(which)].chunks[index(action.chunk)];
    --(input->gradient ? chunk.received_dy : chunk.received_x);
  }

  std::string who_waits() const {
    std::string text;
    for (int rank = 0; rank < placement_.stages; ++rank)
      if (!at_end(rank))
        text += fmt::format("{}rank {} at {} ({})", text.empty() ? "" : "; ", rank,
                            to_string(next_action(rank), placement_), reason(rank));
    return text;
  }

  std::string reason(int rank) const {
    for (const Action& action : next_actions(rank)) {
      const auto input = input_of(placement_, rank, action), send = pending_send(rank, action);
      if (input && done(*input) == unknown_time)
        return fmt::format("waits for its {} from rank {}", input->gradient ? "gradients" : "input",
                           placement_.rank_of(input->from_stage));
      if (!send || done(*send) != unknown_time) continue;
      const Action made{send->gradient ? Act::B : Act::F, send->microbatch, placement_.chunk_of(send->from_stage)};
      return fmt::format("waits for rank {} to take {}", placement_.rank_of(send->to_stage()),
                         to_string(made, placement_));
    }
    fail("rank {} waits for nothing", rank);
  }

  const PipelineSchedule& schedule_;
  const ActionCosts& costs_;
  const Placement placement_;
  const std::vector<std::vector<Exchange>>& posts_;
  std::vector<double> done_;  // per message: when it is where it is needed
  std::vector<Rank> ranks_;
};

void check_shape(const PipelineSchedule& schedule) {
  const auto& placement = schedule.placement;
  require_valid(placement);
  require(static_cast<int>(schedule.ranks.size()) == placement.stages, "a schedule for {} ranks has {} lists",
          placement.stages, schedule.ranks.size());
  require(schedule.microbatches >= 0, "a schedule of {} microbatches", schedule.microbatches);
}

std::vector<RankReport> check_orders(const PipelineSchedule& schedule) {
  check_shape(schedule);
  std::vector<RankReport> reports(schedule.ranks.size());
  for (int rank = 0; rank < schedule.placement.stages; ++rank)
    reports[index(rank)].chunks = RankOrder(schedule, rank).check_chunks();
  return reports;
}

}  // namespace

ScheduleReport check(const PipelineSchedule& schedule, const ActionCosts& costs) {
  check_orders(schedule);
  return check(schedule, costs, exchanges(schedule, costs));
}

ScheduleReport check(const PipelineSchedule& schedule, const ActionCosts& costs,
                     const std::vector<std::vector<Exchange>>& posts) {
  ScheduleReport report;
  report.ranks = check_orders(schedule);
  Simulation simulation(schedule, costs, posts);
  simulation.run();
  report.makespan = simulation.makespan();
  double busy = 0;
  for (int rank = 0; rank < schedule.placement.stages; ++rank) {
    RankReport& mine = report.ranks[index(rank)];
    const auto& actions = schedule.ranks[index(rank)];
    mine.chunks_in_flight = schedule.backward ? chunks_in_flight(actions) : 1;
    mine.start = simulation.rank(rank).start;
    for (std::size_t chunk = 0; chunk < mine.chunks.size(); ++chunk) {
      mine.chunks[chunk].received_x = simulation.rank(rank).chunks[chunk].max_x;
      mine.chunks[chunk].received_dy = simulation.rank(rank).chunks[chunk].max_dy;
    }
    for (const auto& action : actions) mine.busy += costs.of(action.act);
    busy += mine.busy;
  }
  const double all = report.makespan * schedule.placement.stages;
  report.bubble = all > 0 ? 1 - busy / all : 0;
  return report;
}

}  // namespace tera
