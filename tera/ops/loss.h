#pragma once
#include "tera/tensor/tensor.h"

namespace tera {

// Cross entropy of each row, fused with its gradient: logits become scale * (softmax - onehot), zero in rows whose
// target is negative (not counted) and in columns >= vocab (padding, outside the softmax).
//
// With stats (vocabulary parallelism), logits are one shard of the columns, a part, and the softmax is merged from the
// results of cross_entropy_stats for each part, in the order of parts: every part gets the same bits of token_loss.
struct CrossEntropyArgs {
  Tensor logits;           // [T,V], overwritten by the gradient unless loss_only
  Tensor targets;          // i32 [T], global columns; negative: not counted
  Tensor token_loss;       // f32 [T], zero where not counted
  Tensor scale;            // f32 [1]: 1 / counted tokens of the global batch; not needed when loss_only
  Tensor stats = {};       // f32 [parts,T,3], or none: logits have all columns
  std::int64_t first = 0;  // global column of column 0 of logits
  std::int64_t vocab = 0;  // global columns in the softmax
  bool loss_only = false;
  std::int64_t used_columns() const;  // columns of logits in the softmax
  void check() const;
};

// The softmax statistics of one shard of the columns. A row of stats is: the largest logit, the sum of
// e^(logit - largest), and the logit of the target if its column is here, else 0. It is -inf, 0, 0 where no column is
// in the softmax or the target is negative.
struct CrossEntropyStatsArgs {
  Tensor logits;   // [T,V]
  Tensor targets;  // i32 [T], as in CrossEntropyArgs
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
