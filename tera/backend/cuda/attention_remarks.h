#pragma once
// Remarks for the user about calls that cuDNN does not support. Pure C++, as attention_workspace.h.

#include <string>

#include "tera/ops/planned_calls.h"

namespace tera::cuda {

// A line with the cause for each shape of attention that cudnn_supports() rejects; empty when there is none.
std::string attention_without_cudnn(const PlannedCalls& calls, bool deterministic);

}  // namespace tera::cuda
