#pragma once
// The part of resolve() for mixture of experts.

#include <optional>

#include "tera/config/setup.h"
#include "tera/setup/report.h"

namespace tera {

// None if the model is dense. dense: the rest of the model.
std::optional<MoeShape> resolve_moe(const RunConfig& config, const ModelShape& dense, Report& report);

// Checks that the experts can be split over the expert-parallel and expert-tensor-parallel ranks.
void check_expert_split(const ParallelShape& parallel, const ModelShape& model, Report& report);
// Checks the requirements of overlapping the F of a microbatch with the B of another.
void check_expert_overlap(const ParallelShape& parallel, const ModelShape& model, Report& report);

}  // namespace tera
