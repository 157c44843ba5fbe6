#pragma once
// The memory advisor: which settings make a plan fit that does not.

#include <string>

#include "tera/config/setup.h"
#include "tera/ops/workspace.h"

namespace tera {

// Changes of this setup with which its largest rank needs less memory, each with the bytes it would need: "it fits
// with a smaller train.seq_length, or model.recompute_granularity=full (9.50 GiB); dist.tensor_model_parallel_size=2 on
// 2 ranks (11.20 GiB a rank) needs less, but does not fit alone". Every change is rehearsed, so those that the setup
// has already, that its rules forbid or that do not help are not named; on equally many ranks the most effective comes
// first. Of a key with several values the first that fits is named, or the one that needs least. Where no change fits
// alone on the same number of ranks, pairs are tried, and if nothing fits the pair that comes nearest is named.
// needed: bytes of that rank now; available: bytes that it may use. Smaller sizes are named only if the smallest fits.
std::string advise_on_memory(const Setup& setup, const WorkspaceRules& rules, double needed, double available);

}  // namespace tera
