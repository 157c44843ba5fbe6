#include "tera/backend/cuda/kernels/norm.cuh"

#include "tera/backend/cuda/cuda_ops.h"
#include "tera/backend/cuda/runtime/cuda_error.h"
#include "tera/backend/cuda/workspace.h"
#include "tera/ops/norm.h"

namespace tera::cuda {
namespace {

kernels::NormShape norm_shape(const Tensor& x) {
  const std::int64_t vectors = norm_vectors(x), heads = x.shape.rank == 3 ? x.dim(1) : 1, width = x.shape.last();
  constexpr std::int64_t max_extent = kernels::NormShape::max_extent;
  require(vectors <= max_extent && width <= max_extent, "norm: {} vectors of {} are more than the kernels count",
          vectors, width);
  return {.vectors = static_cast<int>(vectors), .heads = static_cast<int>(heads), .width = static_cast<int>(width)};
}

}  // namespace

template <>
void CudaOps::compute(const NormArgs& args) {
  const kernels::NormForward forward{.scalar = scalar_of(args.x.dtype),
                                     .layer = args.kind == NormKind::layer_norm,
                                     .shape = norm_shape(args.x),
                                     .x = args.x.data,
                                     .weight = args.weight.data,
                                     .bias = args.bias.data,
                                     .y = args.y.data,
                                     .mean = args.mean ? args.mean.as<float>() : nullptr,
                                     .rstd = args.rstd.as<float>(),
                                     .x_stride = args.x.stride[0],
                                     .y_stride = args.y.stride[0],
                                     .eps = args.eps};
  check(kernels::launch_norm(forward, stream_), "norm");
}

template <>
void CudaOps::compute(const NormBackArgs& args) {
  const kernels::NormShape shape = norm_shape(args.x);
  const PartialSums blocks = partial_sums(shape.vectors);
  auto* sums = reinterpret_cast<float*>(workspace(norm_back_bytes(args)).data());
  float* dweight_sums = args.dweight ? sums : nullptr;
  float* dbias_sums = args.dbias ? sums + (args.dweight ? blocks.blocks * shape.width : 0) : nullptr;
  const kernels::NormBackward backward{.scalar = scalar_of(args.x.dtype),
                                       .layer = args.kind == NormKind::layer_norm,
                                       .shape = shape,
                                       .dy = args.dy.data,
                                       .x = args.x.data,
                                       .weight = args.weight.data,
                                       .residual = args.residual.data,
                                       .dx = args.dx.data,
                                       .mean = args.mean ? args.mean.as<float>() : nullptr,
                                       .rstd = args.rstd.as<float>(),
                                       .dy_stride = args.dy.stride[0],
                                       .x_stride = args.x.stride[0],
                                       .residual_stride = args.residual.stride[0],
                                       .dx_stride = args.dx.stride[0],
                                       .dweight_sums = dweight_sums,
                                       .dbias_sums = dbias_sums,
                                       .dweight = args.dweight ? args.dweight.as<float>() : nullptr,
                                       .dbias = args.dbias ? args.dbias.as<float>() : nullptr,
                                       .blocks = static_cast<int>(blocks.blocks),
                                       .vectors_per_block = static_cast<int>(blocks.rows_per_block)};
  check(kernels::launch_norm_back(backward, stream_), "norm_back");
}

}  // namespace tera::cuda
