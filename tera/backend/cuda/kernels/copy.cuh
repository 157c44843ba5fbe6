#pragma once
#include "tera/backend/cuda/kernels/types.cuh"

namespace tera::cuda::kernels {

// A copy as runs that are dense on both sides. Where a run begins follows from its number and up to four outer dims.
struct Runs {
  static constexpr int max_rank = 4;
  std::int64_t length, count;                                                // elements of a run; runs
  std::int64_t outer[max_rank], src_stride[max_rank], dst_stride[max_rank];  // strides in elements
  int rank;                                                                  // number of outer dims; 0: one run
};

// Elements of `element_bytes` (1, 2, 4 or 8) as they are.
cudaError_t launch_move(const void* src, void* dst, int element_bytes, const Runs& runs, cudaStream_t stream);
// From one float type to another.
cudaError_t launch_convert(const void* src, Scalar from, void* dst, Scalar to, const Runs& runs, cudaStream_t stream);

// n elements of `element_bytes` (1, 2, 4 or 8) become the low bytes of `bits`.
cudaError_t launch_fill(void* out, int element_bytes, std::uint64_t bits, std::int64_t n, cudaStream_t stream);

// Values with mean 0 and variance 1, roughly normal, for timing on realistic data.
cudaError_t launch_random_fill(void* data, Scalar dtype, std::int64_t n, std::uint64_t seed, cudaStream_t stream);

}  // namespace tera::cuda::kernels
