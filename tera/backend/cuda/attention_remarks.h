#pragma once
// What a user should know of calls that cuDNN is not asked for. Pure C++, as attention_workspace.h.

#include <string>

#include "tera/ops/planned_calls.h"

namespace tera::cuda {

// A line with the cause for each shape of attention that suits_cudnn() turns away; empty when there is none.
std::string attention_turned_away(const PlannedCalls& calls, bool deterministic);

}  // namespace tera::cuda
