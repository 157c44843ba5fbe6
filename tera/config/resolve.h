#pragma once
// From what the user wrote to what follows from it.

#include <cstdint>

#include "tera/config/setup.h"

namespace tera {

// inspect: the length of the run may be left open, as for a plan or a forward pass.
enum class Purpose : std::uint8_t { train, inspect };

// Pure. Checks every rule and reports all that are broken in one UserError, a line each.
Setup resolve(const RunConfig& config, Purpose purpose = Purpose::train);

}  // namespace tera
