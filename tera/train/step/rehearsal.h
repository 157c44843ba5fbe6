#pragma once
// What a rehearsal has to play beside the largest step, and what it has to say about kernels.

#include "tera/ops/planned_calls.h"
#include "tera/pipeline/stage_plan.h"

namespace tera {

// Whether one plan may need memory that the other does not show: arenas and buffers are of one size each, so their
// numbers decide, and some scratch is needed by overlapped F-B pairs alone.
bool needs_more(const StagePlan& plan, const StagePlan& than);

// A rehearsal has the maximum number of documents; a step has fewer, one of several counts.
PlannedCalls with_fewer_documents(PlannedCalls calls);

}  // namespace tera
