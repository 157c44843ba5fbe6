#pragma once
// The config keys with which the ranks of a run may need less memory, and their values to try; nothing is rehearsed
// here.

#include <cstdint>
#include <string>
#include <vector>

#include "tera/config/setup.h"

namespace tera {

// One value of a key.
struct Change {
  std::string words;  // "dist.tensor_model_parallel_size=2"
  RunConfig config;   // configuration with this value
  int world = 1;
};

enum class KnobKind : std::uint8_t { recompute, offload, sharding, tensor, sequence, pipeline, context, experts, rows };

// A key with its values to try, the one that costs least speed first.
struct Knob {
  KnobKind kind;
  std::vector<Change> changes;
};

// The knobs that the setup does not use already, in the order of their kinds: a later one may need an earlier one
// (expert capacity matters only with expert parallelism), never the other way round. Rules of the config may forbid any
// of them, which resolve() decides.
std::vector<Knob> knobs_of(const Setup& setup);

}  // namespace tera
