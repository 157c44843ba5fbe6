#pragma once
#include "tera/tensor/tensor.h"

namespace tera {

// Cross entropy of each row and, in the same pass, its gradient: logits become scale * (softmax - onehot), zero in rows
// whose target is negative (not counted) and in columns >= vocab (padding, outside the softmax).
struct CrossEntropyArgs {
  Tensor logits;           // [T,V], overwritten by the gradient unless loss_only
  Tensor targets;          // i32 [T], negative: not counted
  Tensor token_loss;       // f32 [T], zero where not counted
  Tensor scale;            // f32 [1]: 1 / counted tokens of the global batch; not needed when loss_only
  std::int64_t vocab = 0;  // columns that take part
  bool loss_only = false;
  void check() const;
};

// out (+)= sum of x, in fp64 and in a fixed order. x f32, any shape, dense; out f64 [1].
struct SumArgs {
  Tensor x, out;
  bool accumulate = false;
  void check() const;
};

}  // namespace tera
