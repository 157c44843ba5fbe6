#pragma once
#include "tera/backend/cuda/kernels/types.cuh"

namespace tera::cuda::kernels {

// out[i, j] = std * draw first + i * row_stride + j of the standard normal stream under seed. out [rows, columns],
// dense, of at least one element.
struct Normal {
  void* out = nullptr;
  std::int64_t rows = 0, columns = 0, first = 0, row_stride = 0;
  std::uint64_t seed = 0;
  float std = 1;
  Scalar type = Scalar::f32;
};
cudaError_t launch_normal(const Normal& args, cudaStream_t stream);

}  // namespace tera::cuda::kernels
