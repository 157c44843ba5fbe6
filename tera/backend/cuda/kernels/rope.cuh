#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "tera/backend/cuda/kernels/types.cuh"

namespace tera::cuda::kernels {

// Applies rotary embedding (RoPE) to channel pairs of x [rows, heads, head_size] in place; see tera/ops/rope.h.
struct Rope {
  Scalar scalar;
  bool interleaved, inverse;
  void* x;
  std::int64_t stride;            // from row to row
  const std::int32_t* positions;  // [rows]
  const float *cos, *sin;         // [table_rows, pairs]
  std::int64_t rows, table_rows;
  int heads, head_size, pairs;
};

cudaError_t launch_rope(const Rope& args, cudaStream_t stream);

}  // namespace tera::cuda::kernels
