#pragma once
// A check across the ranks of one machine: they share its memory, and each sees only its own plan.

#include <cstdint>
#include <span>
#include <vector>

#include "tera/config/setup.h"
#include "tera/ops/workspace.h"
#include "tera/tensor/device.h"

namespace tera {

// The ranks on the same machine as `rank`; machines: of each rank, by memory_domain_id().
std::vector<int> ranks_sharing_memory(int rank, std::span<const std::int64_t> machines);

// UserError when the plans of these ranks together need more memory than the machine has left: on the CPU all of their
// memory, with GPUs their host memory (offloaded activations, copies for asynchronous saving).
void check_shared_memory(const Setup& setup, std::span<const int> ranks, const Device& device,
                         const WorkspaceRules& rules);

}  // namespace tera
