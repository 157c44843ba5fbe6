#pragma once
#include <cstdint>

#include "tera/backend/cpu/kernels/isa.h"

namespace tera::cpu {

// y[t] = residual[t] + x[places[t,0]] + ...; dense rows of `width`, `topk` places each.
struct UnpermuteForward {
  const void *x, *residual;  // residual may be null, or y
  const std::int32_t* places;
  void* y;
  std::int64_t topk, width;
};

// Indexed by dtype: f32, bf16, f16.
struct ExpertRowKernels {
  void (*unpermute[3])(const UnpermuteForward& args, std::int64_t begin, std::int64_t end);  // a range of rows of y
};

template <Isa isa>
const ExpertRowKernels& expert_row_kernels();

}  // namespace tera::cpu
