#include "tera/comm/nccl/gpu_ids.h"

#include <fmt/core.h>

#include "tera/base/error.h"

namespace tera::nccl {

void check_gpu_ids(Control& control, ControlGroup& world, const GpuId& local, const GpuErrorContext& context) {
  std::vector<GpuId> all(world.members.size());
  control.gather(world, {.kind = CallKind::split}, std::as_bytes(std::span(&local, 1)),
                 std::as_writable_bytes(std::span(all)));
  const std::string reason =
      context.no_local_rank.empty()
          ? ""
          : fmt::format(", as {} is not set, which says which of a machine's ranks one is", context.no_local_rank);
  for (std::size_t a = 0; a < all.size(); ++a)
    for (std::size_t b = 0; b < a; ++b)
      if (all[a] == all[b])
        fail_user(
            "two ranks on one GPU: ranks {} and {} have the same {}{}; start no more processes on a machine than it "
            "has GPUs, or ranks that share one as threads (--ranks N)",
            b, a, context.name, reason);
}

}  // namespace tera::nccl
