#pragma once
#include <cstdint>

#include "tera/backend/cpu/kernels/isa.h"

namespace tera::cpu {

// out[i] = x[i] + x[i + step] + ..., `heads` of them.
struct HeadSum {
  const void* x;
  void* out;
  std::int64_t heads, step, width;
};

// Indexed by dtype: f32, bf16, f16.
struct LatentHeadKernels {
  void (*sum_heads[3])(const HeadSum& args);
};

template <Isa isa>
const LatentHeadKernels& latent_head_kernels();

}  // namespace tera::cpu
