#pragma once
// An independent check of pipeline schedules by a graph of dependencies; it shares no code with the checker.

#include <optional>

#include "tera/pipeline/schedules.h"

namespace tera::test {

// The time of the longest chain of actions, where sends never wait; nothing where an action is missing, twice there or
// waits for itself.
std::optional<double> longest_chain(const PipelineSchedule& schedule, const ActionCosts& costs);

}  // namespace tera::test
