#pragma once
// A pipeline schedule is data: the list of a rank's actions, in order. One engine executes it.

#include <cstdint>
#include <span>
#include <vector>

namespace tera {

enum class Act : std::uint8_t { F, B, W, BW };                                      // BW: B and W, block by block
constexpr bool makes_gradient(Act act) { return act == Act::B || act == Act::BW; }  // gradient of the input

struct Action {
  Act act;
  std::int32_t microbatch;
  std::int32_t chunk = 0;  // which of the rank's chunks
  // An F that overlaps the next action, a B or BW that does not need its result: both start when the inputs of both are
  // there, and both results are there when both end.
  bool with_next = false;
  bool operator==(const Action&) const = default;
};
using Schedule = std::vector<Action>;

// Gradient accumulation on one stage: each microbatch forward, then backward, so that one set of activations is enough.
Schedule one_stage(int microbatches);

// How many microbatches hold memory of each lifetime at one time.
struct Pools {
  int f_to_b = 0, f_to_w = 0, b_to_w = 0;
  bool operator==(const Pools&) const = default;
};

// Goes through one chunk's actions, and throws unless each microbatch passes F, B, W (or F, BW) exactly once. For all
// ranks and chunks of a pipeline: check.h.
Pools check(std::span<const Action> schedule, int microbatches);

}  // namespace tera
