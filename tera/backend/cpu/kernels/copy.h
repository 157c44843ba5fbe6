#pragma once
#include <cstdint>

#include "tera/backend/cpu/kernels/isa.h"

namespace tera::cpu {

// convert: [from][to], each f32, bf16, f16; null where both are equal.
struct CopyKernels {
  void (*move)(const void* src, void* dst, std::int64_t bytes);
  void (*convert[3][3])(const void* src, void* dst, std::int64_t count);
};

template <Isa isa>
const CopyKernels& copy_kernels();

}  // namespace tera::cpu
