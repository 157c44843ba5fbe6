#pragma once
#include "tera/backend/cuda/kernels/types.cuh"

namespace tera::cuda::kernels {

// out[i] = std * draw i of the standard normal stream under seed.
struct Normal {
  void* out = nullptr;
  std::int64_t elements = 0;
  std::uint64_t seed = 0;
  float std = 1;
  Scalar type = Scalar::f32;
};
cudaError_t launch_normal(const Normal& args, cudaStream_t stream);

}  // namespace tera::cuda::kernels
