#pragma once
#include <cstdint>

#include "tera/backend/cpu/kernels/isa.h"

namespace tera::cpu {

// out[0..count) = the reduction of the same elements of all sources, in their order; indexed by operation (sum, mean,
// max) and by dtype; null where the pair is not supported.
struct CombineKernels {
  using Kernel = void (*)(const void* const* sources, std::int64_t number, std::int64_t begin, std::int64_t count,
                          void* out);
  Kernel combine[3][7];
};

template <Isa isa>
const CombineKernels& combine_kernels();

}  // namespace tera::cpu
