#pragma once
#include "tera/tensor/tensor.h"

namespace tera {

// Rotates the first 2R channels of every head, in place: pairs (i, i+R), or (2i, 2i+1) when interleaved, by the angle
// of the row's position. inverse rotates back: the gradient. x [T,N,D], rows may be strided; positions i32 [T] in
// [0,P); cos, sin f32 [P,R], 2R <= D.
struct RopeArgs {
  Tensor x, positions, cos, sin;
  bool interleaved = false, inverse = false;
  void check() const;
};

}  // namespace tera
