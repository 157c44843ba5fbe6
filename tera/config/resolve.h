#pragma once
// From what the user wrote to what follows from it.

#include <cstdint>

#include "tera/config/load.h"
#include "tera/config/setup.h"

namespace tera {

// inspect, plan: the length of the run, the learning rate and the data may be left open. Nobody starts the ranks of a
// plan, so it is told otherwise how many there are.
enum class Purpose : std::uint8_t { train, inspect, plan };

// Reads nothing but the tokenizer's files, and those only where model.vocab_size is left to them. Checks every rule and
// reports all that are broken in one UserError, a line each; with the origins from load_config() a line also says where
// the value was set. `world` is the number of ranks; what is not taken by tensor and pipeline parallelism are replicas.
// `behind`: of a run that goes on.
Setup resolve(const RunConfig& config, Purpose purpose = Purpose::train, const Origins* origins = nullptr,
              int world = 1, const Behind& behind = {});

// The fewest ranks that the layout fits on: one replica.
int smallest_world(const RunConfig& config);

}  // namespace tera
