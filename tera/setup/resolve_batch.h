#pragma once
// Resolves batch sizes, number of steps and the learning-rate schedule.

#include "tera/config/setup.h"
#include "tera/setup/report.h"
#include "tera/setup/resolve.h"

namespace tera {

BatchShape resolve_batch(const TrainConfig& train, int dp, Purpose purpose, const ResumeOffset& resume, Report& report);

ScheduleShape resolve_schedule(const RunConfig& config, const BatchShape& batch, Purpose purpose, Report& report);

}  // namespace tera
