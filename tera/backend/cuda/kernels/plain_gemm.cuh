#pragma once
#include "tera/backend/cuda/kernels/types.cuh"

namespace tera::cuda::kernels {

// The fallback GEMM: out = op(a) op(b) (+ bias) (+ residual), or accumulated into out, for any strides, types and
// sizes, K = 0 included. Sums are fp32 and rounded once. Slow: for calls that cuBLASLt does not support, or rounds
// twice.
struct PlainGemm {
  const void *a = nullptr, *b = nullptr, *bias = nullptr, *residual = nullptr;
  void* out = nullptr;
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t a_row = 0, a_column = 0;  // distance of neighbours in m and in k
  std::int64_t b_row = 0, b_column = 0;  // distance of neighbours in k and in n
  std::int64_t out_stride = 0, residual_stride = 0;
  bool accumulate = false;
  Scalar in_type = Scalar::f32, out_type = Scalar::f32, bias_type = Scalar::f32, residual_type = Scalar::f32;
};
cudaError_t launch_plain_gemm(const PlainGemm& args, cudaStream_t stream);

}  // namespace tera::cuda::kernels
