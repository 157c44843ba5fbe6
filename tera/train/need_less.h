#pragma once
// For whoever has a plan that does not fit.

#include <string>

#include "tera/config/setup.h"
#include "tera/ops/workspace.h"

namespace tera {

// What can be changed of this setup so that its largest rank needs less, each with what it would need then: "a smaller
// train.seq_length, or model.recompute_granularity=full (9.50 GiB) needs less". Each is rehearsed, so what the setup
// has already, what its rules forbid and what would not help is not named; what helps most comes first.
// needed: now, by that rank; room: what there is for it. Smaller sizes are named only if the smallest would fit; where
// many times the room is needed, nothing else is.
std::string how_to_need_less(const Setup& setup, const WorkspaceRules& rules, double needed, double room);

}  // namespace tera
