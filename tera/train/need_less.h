#pragma once
// For whoever has a plan that does not fit.

#include <string>

#include "tera/config/setup.h"
#include "tera/ops/workspace.h"

namespace tera {

// What can be changed of this setup so that its largest rank needs less, each with what it would need then: "it fits
// with a smaller train.seq_length, or model.recompute_granularity=full (9.50 GiB); dist.tensor_model_parallel_size=2 on
// 2 ranks (11.20 GiB a rank) needs less, but does not fit alone". Each is rehearsed, so what the setup has already,
// what its rules forbid and what would not help is not named; what helps most comes first, on as many ranks. Of a key
// that has several values it is the first that fits, or the one that needs least. Where no change fits alone on as
// many ranks, pairs of them are tried, and the nearest is named if nothing fits.
// needed: now, by that rank; room: what there is for it. Smaller sizes are named only if the smallest would fit.
std::string how_to_need_less(const Setup& setup, const WorkspaceRules& rules, double needed, double room);

}  // namespace tera
