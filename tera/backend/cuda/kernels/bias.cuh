#pragma once
#include "tera/backend/cuda/kernels/types.cuh"

namespace tera::cuda::kernels {

// out[row] += bias. out [rows,columns], rows may be strided; bias [columns].
struct AddBias {
  void* out = nullptr;
  const void* bias = nullptr;
  std::int64_t rows = 0, columns = 0, out_stride = 0;
  Scalar out_type = Scalar::f32, bias_type = Scalar::f32;
};
cudaError_t launch_add_bias(const AddBias& args, cudaStream_t stream);

}  // namespace tera::cuda::kernels
