#pragma once
// The part of resolve() for the parallel layout.

#include "tera/config/setup.h"
#include "tera/setup/report.h"
#include "tera/setup/resolve.h"

namespace tera {

// Resolves the sections dist, ddp, comm_overlap and optimizer.
ParallelShape resolve_parallel(const RunConfig& config, int world, Purpose purpose, Report& report);

// Dynamic context parallelism: checks that documents can be packed anew per step, and sets the limit of microbatches.
void resolve_dynamic_context(const RunConfig& config, Setup& setup, Report& report);

// Checks that the model and the batch can be split over the ranks.
void check_split(const ParallelShape& parallel, const ModelShape& model, const BatchShape& batch, Report& report);

}  // namespace tera
