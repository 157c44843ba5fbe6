#pragma once
// The part of resolve() that is about latent attention.

#include <optional>

#include "tera/config/report.h"
#include "tera/config/setup.h"

namespace tera {

// None where the model has ordinary attention.
std::optional<MlaShape> resolve_mla(const RunConfig& config, Report& report);

// YaRN, or nothing, as the keys of model.mla say.
RopeScaling mla_scaling(const MlaConfig& mla);

}  // namespace tera
