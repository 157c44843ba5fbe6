#pragma once
#include <cstdint>

#include "tera/backend/cpu/kernels/isa.h"

namespace tera::cpu {

// A shard of the embedding table has the rows of ids first .. first + table_rows - 1; other ids give zeros in forward
// and add nothing in backward.
struct EmbeddingForward {
  const std::int32_t *tokens, *positions;
  const void *table, *position_table;  // positions and their table may be null
  void* y;
  std::int64_t first, table_rows, width;
};
struct EmbeddingBackward {
  const std::int32_t* ids;
  const void* dy;
  float* dtable;
  std::int64_t first, table_rows, rows, width;
};

// Indexed by dtype: f32, bf16, f16.
struct EmbeddingKernels {
  void (*forward[3])(const EmbeddingForward& args, std::int64_t begin, std::int64_t end);  // a range of rows
  // A range of columns, over all rows in order: ranges are disjoint, so the sums have one order.
  void (*backward[3])(const EmbeddingBackward& args, std::int64_t begin, std::int64_t end);
};

template <Isa isa>
const EmbeddingKernels& embedding_kernels();

}  // namespace tera::cpu
