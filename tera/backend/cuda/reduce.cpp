#include "tera/backend/cuda/kernels/reduce.cuh"
#include "tera/backend/cuda/cuda_ops.h"
#include "tera/backend/cuda/runtime/cuda_error.h"
#include "tera/backend/cuda/workspace.h"
#include "tera/ops/gemm.h"
#include "tera/ops/loss.h"
#include "tera/ops/optim.h"

namespace tera::cuda {

template <>
void CudaOps::compute(const ColumnSumArgs& args) {
  const std::span<std::byte> partial = workspace(column_sum_bytes(args.x.dim(0), args.x.dim(1)));
  check(kernels::launch_column_sum({.x = args.x.data,
                                    .out = args.out.as<float>(),
                                    .partial = reinterpret_cast<float*>(partial.data()),
                                    .rows = args.x.dim(0),
                                    .width = args.x.dim(1),
                                    .stride = args.x.stride[0],
                                    .blocks = column_sum_blocks(args.x.dim(0), args.x.dim(1)),
                                    .dtype = scalar_of(args.x.dtype)},
                                   stream_),
        "column_sum");
}

template <>
void CudaOps::compute(const SumArgs& args) {
  const std::int64_t n = count(args.x.shape);
  check(kernels::launch_scalar_sum({.x = args.x.as<float>(),
                                    .out = args.out.as<double>(),
                                    .partial = reinterpret_cast<double*>(workspace(scalar_sum_bytes(n)).data()),
                                    .n = n,
                                    .blocks = scalar_sum_blocks(n),
                                    .squares = false,
                                    .accumulate = args.accumulate},
                                   stream_),
        "sum");
}

template <>
void CudaOps::compute(const SumSquaresArgs& args) {
  const std::int64_t n = count(args.x.shape);
  check(kernels::launch_scalar_sum({.x = args.x.as<float>(),
                                    .out = args.out.as<double>(),
                                    .partial = reinterpret_cast<double*>(workspace(scalar_sum_bytes(n)).data()),
                                    .n = n,
                                    .blocks = scalar_sum_blocks(n),
                                    .squares = true,
                                    .accumulate = false},
                                   stream_),
        "sum_squares");
}

}  // namespace tera::cuda
