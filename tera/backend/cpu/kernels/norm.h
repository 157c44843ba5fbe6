#pragma once
#include <cstdint>

#include "tera/backend/cpu/kernels/isa.h"

namespace tera::cpu {

// Vectors of `width` elements, `heads` of them side by side in each row; vector v is head v % heads of row v / heads.
struct NormShape {
  std::int64_t heads = 1, width = 0;
};
struct NormForward {
  NormShape shape;
  const void *x, *weight, *bias;
  void* y;
  float *mean, *rstd;  // one per vector
  std::int64_t x_stride, y_stride;
  float eps;
};
struct NormBackward {
  NormShape shape;
  const void *dy, *x, *weight, *residual;
  void* dx;
  const float *mean, *rstd;
  std::int64_t dy_stride, x_stride, residual_stride, dx_stride;
};

// First index: layer_norm, rms_norm. Second: f32, bf16, f16.
struct NormKernels {
  void (*forward[2][3])(const NormForward& args, std::int64_t begin, std::int64_t end);
  // dweight, dbias: sums over this range of vectors, overwritten; either may be null.
  void (*backward[2][3])(const NormBackward& args, std::int64_t begin, std::int64_t end, float* dweight, float* dbias);
};

template <Isa isa>
const NormKernels& norm_kernels();

}  // namespace tera::cpu
