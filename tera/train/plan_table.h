#pragma once
#include <string>

#include "tera/train/memory_plan.h"
#include "tera/train/training_step.h"

namespace tera {

// `tera plan`: every byte of a rank by what it is for, as a table or as JSON.
std::string plan_table(const Setup& setup, const MemoryPlan& plan, const TrainingStep& step);
std::string plan_json(const Setup& setup, const MemoryPlan& plan, const TrainingStep& step);

}  // namespace tera
