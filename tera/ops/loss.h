#pragma once
#include "tera/tensor/tensor.h"

namespace tera {

// Cross entropy of each row and, in the same pass, its gradient: logits become scale * (softmax - onehot), zero in rows
// whose target is negative (not counted) and in columns >= vocab (padding, outside the softmax).
//
// With stats, logits are a part of the columns, and the softmax is merged from what cross_entropy_stats gave for each
// part, in the order of parts: from the same stats every part gets the same bits of token_loss.
struct CrossEntropyArgs {
  Tensor logits;           // [T,V], overwritten by the gradient unless loss_only
  Tensor targets;          // i32 [T], columns of all parts; negative: not counted
  Tensor token_loss;       // f32 [T], zero where not counted
  Tensor scale;            // f32 [1]: 1 / counted tokens of the global batch; not needed when loss_only
  Tensor stats = {};       // f32 [parts,T,3], or none: logits are all there is
  std::int64_t first = 0;  // column 0 of logits, counted over all parts
  std::int64_t vocab = 0;  // columns of all parts that take part
  bool loss_only = false;
  std::int64_t used_columns() const;  // those of logits that take part
  void check() const;
};

// The softmax of a part of the columns. A row of stats is: the largest logit, the sum of e^(logit - largest), and the
// logit of the target if it lies here, else 0. It is -inf, 0, 0 where no column takes part or the target is negative.
struct CrossEntropyStatsArgs {
  Tensor logits;   // [T,V]
  Tensor targets;  // i32 [T], as above
  Tensor stats;    // f32 [T,3]
  std::int64_t first = 0, vocab = 0;
  std::int64_t used_columns() const;
  void check() const;
};

// out (+)= sum of x, in fp64 and in a fixed order. x f32, any shape, dense; out f64 [1].
struct SumArgs {
  Tensor x, out;
  bool accumulate = false;
  void check() const;
};

}  // namespace tera
