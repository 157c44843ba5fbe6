#pragma once
// The model's part of resolve().

#include "tera/config/report.h"
#include "tera/config/setup.h"

namespace tera {

ModelShape resolve_model(const RunConfig& config, Report& report);

}  // namespace tera
