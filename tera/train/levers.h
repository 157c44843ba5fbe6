#pragma once
// What can be changed of a run so that its ranks need less memory, as far as its keys say so; nothing is rehearsed
// here.

#include <cstdint>
#include <string>
#include <vector>

#include "tera/config/setup.h"

namespace tera {

// One value of a key.
struct Change {
  std::string words;  // "dist.tensor_model_parallel_size=2"
  RunConfig config;   // with it
  int world = 1;
};

enum class LeverKind : std::uint8_t {
  recompute,
  offload,
  sharding,
  tensor,
  sequence,
  pipeline,
  context,
  experts,
  rows
};

// A key with the values that there are for it, from the one that costs least speed on.
struct Lever {
  LeverKind kind;
  std::vector<Change> changes;
};

// Those that the setup does not have already, in the order of their kinds: an earlier one may be what a later one needs
// (rows of experts come from other ranks only once there are some), never the other way. Rules of the config may forbid
// any of them; resolve() knows.
std::vector<Lever> levers_of(const Setup& setup);

}  // namespace tera
