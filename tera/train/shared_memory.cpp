#include "tera/train/shared_memory.h"

#include <algorithm>

#include "tera/base/error.h"
#include "tera/plan/memory_advisor.h"
#include "tera/plan/world_plan.h"

namespace tera {
namespace {

struct Needs {  // in bytes, which may be more than can be addressed
  double device = 0, offloaded = 0, saving = 0;
  double largest = 0;  // device bytes of one rank
  double on_host() const { return offloaded + saving; }
};

Needs add_up(const Setup& setup, std::span<const int> ranks, const WorkspaceRules& rules) {
  const WorldPlan plan = plan_world(setup, rules);
  const MeshPlan mesh(setup.parallel.mesh);
  Needs needs;
  for (const int rank : ranks) {
    const MemoryPlan& memory = plan.stages[static_cast<std::size_t>(mesh.coord(rank).pp)].memory;
    needs.device += static_cast<double>(memory.total());
    needs.largest = std::max(needs.largest, static_cast<double>(memory.total()));
    needs.offloaded += static_cast<double>(memory.offloaded_bytes());
    needs.saving += static_cast<double>(memory.saving_bytes());
  }
  return needs;
}

bool keeps_something_on_host(const RunConfig& config) {
  return !config.model.offload_modules.empty() || (!config.checkpoint.save.empty() && config.checkpoint.async_save);
}

}  // namespace

std::vector<int> ranks_sharing_memory(int rank, std::span<const std::int64_t> machines) {
  std::vector<int> ranks;
  for (std::size_t other = 0; other < machines.size(); ++other)
    if (machines[other] == machines[static_cast<std::size_t>(rank)]) ranks.push_back(static_cast<int>(other));
  return ranks;
}

void check_shared_memory(const Setup& setup, std::span<const int> ranks, const Device& device,
                         const WorkspaceRules& rules) {
  if (ranks.size() < 2 || (!device.is_host() && !keeps_something_on_host(setup.config))) return;
  const Needs needs = add_up(setup, ranks, rules);
  const std::size_t available = device.host_available();
  if (device.is_host() && needs.device + needs.on_host() > static_cast<double>(available))
    fail_user(
        "the plans of the {} ranks need {:.2f} GiB together, and this machine has {} left; fewer --ranks need less; {}",
        ranks.size(), (needs.device + needs.on_host()) / 0x1p30, format_bytes(available),
        advise_on_memory(setup, rules, needs.largest,
                         static_cast<double>(available) / static_cast<double>(ranks.size())));
  if (!device.is_host() && needs.on_host() > static_cast<double>(available))
    fail_user(
        "the plans of the {} ranks of this machine need {:.2f} GiB of the host together, {:.2f} for "
        "model.offload_modules and {:.2f} for checkpoint.async_save, and it has {} left; fewer modules, or "
        "checkpoint.async_save=false, need less",
        ranks.size(), needs.on_host() / 0x1p30, needs.offloaded / 0x1p30, needs.saving / 0x1p30,
        format_bytes(available));
}

}  // namespace tera
