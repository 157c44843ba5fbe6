#include "tera/backend/cpu/cpu_ops.h"

#include "tera/base/error.h"

namespace tera::cpu {

CpuOps::CpuOps(int threads, Isa isa) : pool_(threads), isa_(isa) {
  require(threads >= 1, "a rank has at least one thread, not {}", threads);
  require(supports(isa), "this machine cannot run {} code", name_of(isa));
}

std::span<std::byte> CpuOps::workspace(std::size_t bytes) const {
  require(bytes <= workspace_.size(), "an op needs {} bytes of workspace, the plan reserved {}", bytes,
          workspace_.size());
  return workspace_.first(bytes);
}

}  // namespace tera::cpu
