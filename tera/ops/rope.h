#pragma once
#include "tera/tensor/tensor.h"

namespace tera {

// Rotary position embedding (RoPE): rotates 2R channels of every head, from `first` on, in place: pairs (i, i+R), or
// (2i, 2i+1) when interleaved, by the angle of the row's position. inverse rotates back, which is the backward. x
// [T,N,D], rows may be strided; positions i32 [T] in [0,P); cos, sin f32 [P,R], first + 2R <= D.
struct RopeArgs {
  Tensor x, positions, cos, sin;
  bool interleaved = false, inverse = false;
  std::int64_t first = 0;
  void check() const;
};

}  // namespace tera
