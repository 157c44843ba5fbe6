#pragma once
// Resolves a configuration: from what the user wrote to a Setup, all sizes derived and all rules checked.

#include <cstdint>

#include "tera/config/setup.h"
#include "tera/setup/load.h"

namespace tera {

// inspect, plan: the length of the run, the learning rate and the data may be left open. A plan starts no ranks, so
// their number is an option of the command.
enum class Purpose : std::uint8_t { train, inspect, plan };

// Reads nothing but the tokenizer's files, and those only where model.vocab_size is left to them. Checks every rule and
// reports all that are broken in one UserError, a line each; with the origins from load_config() a line also says where
// the value was set. `world` is the number of ranks; those that tensor, context and pipeline parallelism do not
// use are replicas. `resume`: the progress of a resumed run.
Setup resolve(const RunConfig& config, Purpose purpose = Purpose::train, const Origins* origins = nullptr,
              int world = 1, const ResumeOffset& resume = {});

// The smallest number of ranks for the layout: one replica.
int smallest_world(const RunConfig& config);

}  // namespace tera
