#pragma once
#include "tera/backend/cuda/kernels/types.cuh"

namespace tera::cuda::kernels {

// out += the sum of the rows of x. Each of `blocks` blocks takes a few rows at a time, in turn; its sum is a row of
// partial, and the partial rows are added in order.
struct ColumnSum {
  const void* x;   // [rows,width], rows `stride` elements apart
  float* out;      // [width]
  float* partial;  // [blocks,width]
  std::int64_t rows, width, stride;
  std::int64_t blocks;
  Scalar dtype;
};
cudaError_t launch_column_sum(const ColumnSum& args, cudaStream_t stream);

// out (+)= the sum of x, or of its squares, in fp64. The order depends on n and blocks alone.
struct ScalarSum {
  const float* x;   // [n]
  double* out;      // [1]
  double* partial;  // [blocks]; not needed when there is one block
  std::int64_t n, blocks;
  bool squares, accumulate;
};
cudaError_t launch_scalar_sum(const ScalarSum& args, cudaStream_t stream);

}  // namespace tera::cuda::kernels
