#pragma once
// Rotary position embedding (RoPE): rotates channel pairs in place, for some rows.

#include <cstddef>
#include <cstdint>

#include "tera/backend/cpu/kernels/isa.h"

namespace tera::cpu {

enum class RopeStorage : unsigned char { f32, bf16, f16 };
inline constexpr int rope_storages = 3;

struct RopeRows {
  void* x = nullptr;                        // [rows, heads, head_size]
  std::ptrdiff_t stride = 0;                // from row to row
  const std::int32_t* positions = nullptr;  // [rows]
  const float* cos = nullptr;               // [P, pairs]
  const float* sin = nullptr;               // [P, pairs]
  std::ptrdiff_t rows = 0, heads = 0, head_size = 0, pairs = 0;
  bool interleaved = false, inverse = false;
};

struct RopeKernels {
  void (*rotate[rope_storages])(const RopeRows&);
};

template <Isa isa>
const RopeKernels& rope_kernels();

}  // namespace tera::cpu
