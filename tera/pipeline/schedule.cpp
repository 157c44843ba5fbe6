#include "tera/pipeline/schedule.h"

#include <algorithm>
#include <array>
#include <utility>

#include "tera/base/error.h"

namespace tera {
namespace {

enum class State : std::uint8_t { fresh, forwarded, backwarded, done };

constexpr std::pair<State, State> change(Act act) {
  switch (act) {
    case Act::F: return {State::fresh, State::forwarded};
    case Act::B: return {State::forwarded, State::backwarded};
    case Act::W: return {State::backwarded, State::done};
    case Act::BW: return {State::forwarded, State::done};
  }
  return {State::done, State::done};
}

}  // namespace

Schedule one_stage(int microbatches) {
  Schedule schedule;
  for (int i = 0; i < microbatches; ++i) {
    schedule.push_back({Act::F, i});
    schedule.push_back({Act::BW, i});
  }
  return schedule;
}

Pools check(std::span<const Action> schedule, int microbatches) {
  std::vector<State> state(static_cast<std::size_t>(microbatches), State::fresh);
  std::array<int, 4> in{microbatches, 0, 0, 0};  // microbatches in each state
  const auto number = [&](State s) -> int& { return in[static_cast<std::size_t>(s)]; };
  Pools pools;
  for (const auto& action : schedule) {
    require(action.microbatch >= 0 && action.microbatch < microbatches, "the schedule names microbatch {} of {}",
            action.microbatch, microbatches);
    State& now = state[static_cast<std::size_t>(action.microbatch)];
    const auto [before, after] = change(action.act);
    require(now == before, "the schedule plays microbatch {} out of order", action.microbatch);
    // During B (or BW) a microbatch still has the memory of F and already that for W.
    if (action.act == Act::B || action.act == Act::BW)
      pools.b_to_w = std::max(pools.b_to_w, number(State::backwarded) + 1);
    --number(before);
    ++number(after);
    now = after;
    pools.f_to_b = std::max(pools.f_to_b, number(State::forwarded));
    pools.f_to_w = std::max(pools.f_to_w, number(State::forwarded) + number(State::backwarded));
  }
  require(number(State::done) == microbatches, "the schedule leaves microbatches unfinished");
  return pools;
}

}  // namespace tera
