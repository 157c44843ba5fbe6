#include "tera/backend/cpu/cpu_ops.h"

#include <chrono>

#include "tera/backend/cpu/workspace.h"
#include "tera/base/error.h"

namespace tera::cpu {

CpuOps::~CpuOps() = default;
CpuOps::CpuOps(int threads, Isa isa) : pool_(threads), isa_(isa) {
  require(threads >= 1, "a rank has at least one thread, not {}", threads);
  require(supports(isa), "this machine cannot run {} code", name_of(isa));
}

Ticket CpuOps::record() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return {static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count()), this};
}

const OpsTraits& CpuOps::traits() const { return cpu_traits; }

std::span<std::byte> CpuOps::workspace(std::size_t bytes) const {
  require(bytes <= workspace_.size(), "an op needs {} bytes of workspace, the plan reserved {}", bytes,
          workspace_.size());
  return workspace_.first(bytes);
}

}  // namespace tera::cpu
