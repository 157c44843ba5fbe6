#pragma once
// The part of resolve() for multi-head latent attention (MLA).

#include <optional>

#include "tera/config/setup.h"
#include "tera/setup/report.h"

namespace tera {

// None if the model has standard attention.
std::optional<MlaShape> resolve_mla(const RunConfig& config, Report& report);

}  // namespace tera
