#pragma once
#include <cstdint>

#include "tera/backend/cpu/kernels/isa.h"

namespace tera::cpu {

struct ReduceKernels {
  double (*sum)(const float* x, std::int64_t count);
  double (*sum_squares)(const float* x, std::int64_t count);
  // out[0..width) = sum of `rows` rows of x; indexed by dtype: f32, bf16, f16.
  void (*sum_rows[3])(const void* x, std::int64_t stride, std::int64_t rows, std::int64_t width, float* out);
  // out[0..width) += the same columns of `rows` dense rows, `stride` apart, one after the other.
  void (*add_rows)(const float* x, std::int64_t stride, std::int64_t rows, std::int64_t width, float* out);
};

template <Isa isa>
const ReduceKernels& reduce_kernels();

}  // namespace tera::cpu
