#pragma once
#include "tera/backend/cuda/kernels/types.cuh"

namespace tera::cuda::kernels {

// The fallback grouped GEMM, for any sizes, types and alignment: rows offsets[g] .. offsets[g+1] belong to group g.
// Sums are fp32, in the order of K, and rounded once. For calls that faster kernels do not support. Dense.

// out[r] = a[r] b[g].
struct PlainGroupedGemm {
  const void *a, *b;  // [rows,k], [groups,k,n] or, transposed, [groups,n,k]
  void* out;          // [rows,n]
  const std::int32_t* offsets;
  std::int64_t rows, n, k, groups;
  bool trans_b;
  Scalar in_type, out_type;  // out_type is in_type or f32
};

// out[g] += a_g^T b_g, or, without reading it, out[g] = a_g^T b_g: zero where a group is empty.
struct PlainGroupedWeightGradient {
  const void *a, *b;  // [rows,m], [rows,n]
  float* out;         // [groups,m,n]
  const std::int32_t* offsets;
  std::int64_t m, n, groups;
  bool accumulate;
  Scalar in_type;
};

cudaError_t launch_plain_grouped_gemm(const PlainGroupedGemm& args, cudaStream_t stream);
cudaError_t launch_plain_grouped_weight_gradient(const PlainGroupedWeightGradient& args, cudaStream_t stream);

}  // namespace tera::cuda::kernels
