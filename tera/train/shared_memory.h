#pragma once
// Ranks of one machine share its memory, and each sees only its own plan.

#include <cstdint>
#include <span>
#include <vector>

#include "tera/config/setup.h"
#include "tera/ops/workspace.h"
#include "tera/tensor/device.h"

namespace tera {

// Of the ranks whose places are given, those at the place of this one.
std::vector<int> ranks_at_place_of(int rank, std::span<const std::int64_t> places);

// UserError when the plans of these ranks together need more of the machine than it has left: on the CPU all of their
// memory, with GPUs what they keep on the host.
void check_shared_memory(const Setup& setup, std::span<const int> ranks, const Device& device,
                         const WorkspaceRules& rules);

}  // namespace tera
