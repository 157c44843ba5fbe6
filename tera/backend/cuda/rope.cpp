#include "tera/backend/cuda/kernels/rope.cuh"

#include "tera/backend/cuda/cuda_ops.h"
#include "tera/backend/cuda/runtime/cuda_error.h"
#include "tera/ops/rope.h"

namespace tera::cuda {

template <>
void CudaOps::compute(const RopeArgs& args) {
  const kernels::Rope rope{
      .scalar = scalar_of(args.x.dtype),
      .interleaved = args.interleaved,
      .inverse = args.inverse,
      .x = static_cast<std::byte*>(args.x.data) + static_cast<std::size_t>(args.first) * size_of(args.x.dtype),
      .stride = args.x.stride[0],
      .positions = args.positions.as<std::int32_t>(),
      .cos = args.cos.as<float>(),
      .sin = args.sin.as<float>(),
      .rows = args.x.dim(0),
      .table_rows = args.cos.dim(0),
      .heads = static_cast<int>(args.x.dim(1)),
      .head_size = static_cast<int>(args.x.dim(2)),
      .pairs = static_cast<int>(args.cos.dim(1))};
  check(kernels::launch_rope(rope, stream_), "rope");
}

}  // namespace tera::cuda
