#include "tera/backend/cuda/kernels/experts/expert_rows.cuh"

#include "tera/backend/cuda/cuda_ops.h"
#include "tera/backend/cuda/kernels/experts/group_rows.cuh"
#include "tera/backend/cuda/runtime/cuda_error.h"
#include "tera/backend/cuda/workspace.h"
#include "tera/ops/expert_rows.h"
#include "tera/ops/route.h"

namespace tera::cuda {

static_assert(GroupRowsArgs::max_router_experts == kernels::max_groups);

template <>
void CudaOps::compute(const GroupRowsArgs& args) {
  const std::int64_t blocks = group_rows_blocks(args.choices()), groups = args.groups();
  auto* counts = reinterpret_cast<std::int32_t*>(workspace(group_rows_bytes(args)).data());
  std::int32_t *starts = counts + blocks * groups, *order = starts + groups + 1;  // there with a capacity only
  const kernels::GroupRows group{.experts = args.experts.as<std::int32_t>(),
                                 .weights = args.weights ? args.weights.as<float>() : nullptr,
                                 .offsets = args.offsets.as<std::int32_t>(),
                                 .sources = args.sources.as<std::int32_t>(),
                                 .places = args.places.as<std::int32_t>(),
                                 .overflow = args.overflow ? args.overflow.as<std::int32_t>() : nullptr,
                                 .counts = counts,
                                 .starts = args.capacity > 0 ? starts : nullptr,
                                 .order = args.capacity > 0 ? order : nullptr,
                                 .choices = args.choices(),
                                 .rows = args.sources.dim(0),
                                 .first_expert = args.first_expert,
                                 .capacity = args.capacity,
                                 .groups = static_cast<int>(groups),
                                 .blocks = static_cast<int>(blocks)};
  check(kernels::launch_group_rows(group, stream_), "group_rows");
}

template <>
void CudaOps::compute(const PermuteArgs& args) {
  const kernels::Permute permute{.scalar = scalar_of(args.x.dtype),
                                 .x = args.x.data,
                                 .sources = args.sources.as<std::int32_t>(),
                                 .y = args.y.data,
                                 .tokens = args.x.dim(0),
                                 .rows = args.y.dim(0),
                                 .width = args.y.dim(1),
                                 .topk = static_cast<std::int32_t>(args.topk)};
  check(kernels::launch_permute(permute, stream_), "permute");
}

template <>
void CudaOps::compute(const UnpermuteArgs& args) {
  const kernels::Unpermute unpermute{.scalar = scalar_of(args.x.dtype),
                                     .x = args.x.data,
                                     .residual = args.residual.data,
                                     .places = args.places.as<std::int32_t>(),
                                     .y = args.y.data,
                                     .tokens = args.y.dim(0),
                                     .rows = args.x.dim(0),
                                     .width = args.y.dim(1),
                                     .topk = args.places.dim(1)};
  check(kernels::launch_unpermute(unpermute, stream_), "unpermute");
}

}  // namespace tera::cuda
