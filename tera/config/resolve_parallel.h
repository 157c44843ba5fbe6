#pragma once
// The part of resolve() that says how a run is split over ranks.

#include "tera/config/report.h"
#include "tera/config/resolve.h"
#include "tera/config/setup.h"

namespace tera {

// From dist, ddp, comm_overlap and optimizer.
ParallelShape resolve_parallel(const RunConfig& config, int world, Purpose purpose, Report& report);

// Whether the documents of a step can be dealt out anew, where that is asked for, and how many microbatches it may
// take.
void resolve_dynamic_context(const RunConfig& config, Setup& setup, Report& report);

// Whether the model and the batch can be split so.
void check_split(const ParallelShape& parallel, const ModelShape& model, const BatchShape& batch, Report& report);

}  // namespace tera
