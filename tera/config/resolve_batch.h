#pragma once
// How large the steps of a run are, how many there are, and what the learning rate does over them.

#include "tera/config/report.h"
#include "tera/config/resolve.h"
#include "tera/config/setup.h"

namespace tera {

BatchShape resolve_batch(const TrainConfig& train, int dp, Purpose purpose, const Behind& behind, Report& report);

ScheduleShape resolve_schedule(const RunConfig& config, const BatchShape& batch, Purpose purpose, Report& report);

}  // namespace tera
