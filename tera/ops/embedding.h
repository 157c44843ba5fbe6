#pragma once
#include "tera/tensor/tensor.h"

namespace tera {

// y[t] = table[tokens[t]] (+ position_table[positions[t]]). tokens, positions i32 [T]; table [V,H]; y [T,H]; dense.
struct EmbeddingArgs {
  Tensor tokens, table, y;
  Tensor positions, position_table;  // both or neither; position_table [P,H]
  void check() const;
};

// dtable[ids[t]] += dy[t], in the order of t. ids i32 [T]; dy [T,H]; dtable f32 [V,H].
struct EmbeddingBackArgs {
  Tensor ids, dy, dtable;
  void check() const;
};

}  // namespace tera
