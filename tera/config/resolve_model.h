#pragma once
// The model's part of resolve().

#include "tera/config/report.h"
#include "tera/config/setup.h"

namespace tera {

// `tp` ranks share the vocabulary.
ModelShape resolve_model(const RunConfig& config, int tp, Report& report);

}  // namespace tera
