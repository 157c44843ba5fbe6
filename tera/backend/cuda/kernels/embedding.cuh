#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "tera/backend/cuda/kernels/types.cuh"

namespace tera::cuda::kernels {

// y[t] = table[tokens[t] - first] (+ position_table[positions[t]]); dense. Tokens outside the table take zeros if it is
// a vocabulary-parallel shard (partial), NaN otherwise.
struct EmbeddingForward {
  Scalar scalar;
  const std::int32_t *tokens, *positions;  // [rows]; positions may be null
  const void *table, *position_table;      // [table_rows, width], [position_rows, width]
  void* y;                                 // [rows, width]
  std::int64_t rows, width, table_rows, position_rows, first;
  bool partial;
};

// dtable[ids[t] - first] += dy[t], in the order of t; ids outside the table are left out.
struct EmbeddingBackward {
  Scalar scalar;
  const std::int32_t* ids;  // [rows]
  const void* dy;           // [rows, width]
  float* dtable;            // [table_rows, width]
  std::uint64_t* keys;      // [2, rows], workspace
  std::int64_t rows, width, table_rows, first;
};

cudaError_t launch_embedding(const EmbeddingForward& args, cudaStream_t stream);
cudaError_t launch_embedding_back(const EmbeddingBackward& args, cudaStream_t stream);

}  // namespace tera::cuda::kernels
