#pragma once
// The part of resolve() that is about experts.

#include <optional>

#include "tera/config/report.h"
#include "tera/config/setup.h"

namespace tera {

// None where the model has no experts. dense: the rest of the model.
std::optional<MoeShape> resolve_moe(const RunConfig& config, const ModelShape& dense, Report& report);

// Whether the experts can be split over ranks so.
void check_expert_split(const ParallelShape& parallel, const ModelShape& model, Report& report);
// What playing F of one microbatch together with B of another needs.
void check_expert_overlap(const ParallelShape& parallel, const ModelShape& model, Report& report);

}  // namespace tera
