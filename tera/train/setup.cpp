#include <fmt/format.h>

#include "tera/backend/cpu/cpu_device.h"
#include "tera/backend/cpu/cpu_ops.h"
#include "tera/backend/cpu/workspace.h"
#include "tera/base/cores.h"
#include "tera/base/error.h"
#include "tera/train/backend.h"

namespace tera {
namespace {

int thread_count(const DistConfig& config) {
  return config.threads > 0 ? static_cast<int>(config.threads) : usable_cores();
}

cpu::Isa choose_isa(CpuIsa wanted) {
  if (wanted == CpuIsa::automatic) return cpu::best_isa();
  const auto isa = wanted == CpuIsa::avx512 ? cpu::Isa::avx512
                   : wanted == CpuIsa::avx2 ? cpu::Isa::avx2
                                            : cpu::Isa::baseline;
  require_user(cpu::supports(isa), "dist.cpu_isa={}: this machine runs at most {}", name_of(wanted),
               name_of(cpu::best_isa()));
  return isa;
}

}  // namespace

Backend make_backend(const DistConfig& config) {
  const int threads = thread_count(config);
  const cpu::Isa isa = choose_isa(config.cpu_isa);
  return {.name = fmt::format("cpu, {} thread{}, {}", threads, threads == 1 ? "" : "s", name_of(isa)),
          .device = std::make_unique<cpu::CpuDevice>(),
          .rules = make_workspace_rules(config),
          .ops = std::make_unique<cpu::CpuOps>(threads, isa)};
}

std::unique_ptr<WorkspaceRules> make_workspace_rules(const DistConfig& config) {
  return std::make_unique<cpu::CpuWorkspaceRules>(thread_count(config));
}

}  // namespace tera
