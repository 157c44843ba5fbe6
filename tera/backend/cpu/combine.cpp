#include "tera/backend/cpu/kernels/combine.h"

#include <array>

#include "tera/backend/cpu/blocks.h"
#include "tera/backend/cpu/cpu_ops.h"
#include "tera/ops/combine.h"

namespace tera::cpu {

template <>
void CpuOps::compute(const CombineArgs& args) {
  std::array<const void*, CombineArgs::max_sources> sources;
  for (std::size_t s = 0; s < args.sources.size(); ++s) sources[s] = args.sources[s].data;
  const auto number = static_cast<std::int64_t>(args.sources.size());
  const auto& kernels = pick(isa_, []<Isa i>() -> const CombineKernels& { return combine_kernels<i>(); });
  const auto kernel = kernels.combine[static_cast<int>(args.how)][static_cast<int>(args.out.dtype)];
  run_blocks(pool_, element_blocks(count(args.out.shape)), [&](std::int64_t begin, std::int64_t end) {
    kernel(sources.data(), number, begin, end - begin, args.out.data);
  });
}

}  // namespace tera::cpu
