#pragma once
#include "tera/tensor/tensor.h"

namespace tera {

// y[t] = table[tokens[t]] (+ position_table[positions[t]]). tokens, positions i32 [T]; table [V,H]; y [T,H]; dense.
// The embedding table may be a vocabulary-parallel shard: its rows are those of ids first, first + 1, ...
struct EmbeddingArgs {
  Tensor tokens, table, y;
  Tensor positions, position_table;  // both or neither; position_table [P,H]
  std::int64_t first = 0;
  bool partial = false;  // tokens of other shards get zeros from the table; false: they are an error
  void check() const;
};

// dtable[ids[t]] += dy[t], in the order of t. ids i32 [T]; dy [T,H]; dtable f32 [V,H], its rows those of ids first,
// first + 1, ...
struct EmbeddingBackArgs {
  Tensor ids, dy, dtable;
  std::int64_t first = 0;
  bool partial = false;  // ids of other shards are skipped
  void check() const;
};

}  // namespace tera
