#pragma once
// From what the user wrote to what follows from it.

#include <cstdint>

#include "tera/config/load.h"
#include "tera/config/setup.h"

namespace tera {

// inspect: the length of the run, the learning rate and the data may be left open, as for a plan or a forward pass.
enum class Purpose : std::uint8_t { train, inspect };

// Pure. Checks every rule and reports all that are broken in one UserError, a line each; with the origins from
// load_config() a line also says where the value was set.
Setup resolve(const RunConfig& config, Purpose purpose = Purpose::train, const Origins* origins = nullptr);

}  // namespace tera
