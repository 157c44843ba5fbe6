#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "tera/backend/cuda/kernels/types.cuh"

namespace tera::cuda::kernels {

// Vectors of `width` elements, `heads` of them side by side in each row; vector v is head v % heads of row v / heads.
struct NormShape {
  static constexpr std::int64_t max_extent = 1 << 30;  // limit of each: counts and sums of two stay inside an int
  int vectors, heads, width;
};

struct NormForward {
  Scalar scalar;
  bool layer;  // LayerNorm; false: RMSNorm, without bias and mean
  NormShape shape;
  const void *x, *weight, *bias;
  void* y;
  float *mean, *rstd;  // [vectors]
  std::int64_t x_stride, y_stride;
  float eps;
};

struct NormBackward {
  Scalar scalar;
  bool layer;
  NormShape shape;
  const void *dy, *x, *weight, *residual;  // residual may be null
  void* dx;                                // may be dy, may be residual
  const float *mean, *rstd;                // [vectors]
  std::int64_t dy_stride, x_stride, residual_stride, dx_stride;
  // Sums over blocks of vectors, f32 [blocks, width], then added to the gradients in order. Null where not wanted.
  float *dweight_sums, *dbias_sums;
  float *dweight, *dbias;  // f32 [width]
  int blocks, vectors_per_block;
};

cudaError_t launch_norm(const NormForward& args, cudaStream_t stream);
cudaError_t launch_norm_back(const NormBackward& args, cudaStream_t stream);

}  // namespace tera::cuda::kernels
