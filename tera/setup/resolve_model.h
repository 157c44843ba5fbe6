#pragma once
// The part of resolve() for the model section.

#include "tera/config/setup.h"
#include "tera/setup/report.h"

namespace tera {

// The vocabulary is sharded over `tp` ranks.
ModelShape resolve_model(const RunConfig& config, int tp, Report& report);

}  // namespace tera
