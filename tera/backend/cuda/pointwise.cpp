#include "tera/backend/cuda/kernels/pointwise.cuh"

#include <cmath>

#include "tera/backend/cuda/cuda_ops.h"
#include "tera/backend/cuda/runtime/cuda_error.h"
#include "tera/ops/pointwise.h"

namespace tera::cuda {
namespace {

kernels::Curve curve_of(Activation kind) {
  switch (kind) {
    case Activation::gelu:
    case Activation::geglu: return kernels::Curve::gelu;
    case Activation::gelu_tanh:
    case Activation::geglu_tanh: return kernels::Curve::gelu_tanh;
    case Activation::squared_relu: return kernels::Curve::squared_relu;
    case Activation::silu:
    case Activation::swiglu: return kernels::Curve::silu;
  }
  fail("activation {} has no CUDA kernel", static_cast<int>(kind));
}

kernels::RowWeights row_weights(const Tensor& weights, const Tensor& sources) {
  return {weights.as<float>(), sources.as<std::int32_t>(), count(weights.shape)};
}

// uniform_from_bits(bits) >= rate as a comparison of bits: converting each to a float would cost more than drawing it.
// The upper 24 bits count, and a float times a power of two is exact.
std::uint32_t least_kept_bits(float rate) { return static_cast<std::uint32_t>(std::ceil(rate * 0x1p24f)) << 8; }

}  // namespace

template <>
void CudaOps::compute(const ActivationArgs& args) {
  const kernels::ActivationForward forward{.scalar = scalar_of(args.x.dtype),
                                           .curve = curve_of(args.kind),
                                           .gated = is_gated(args.kind),
                                           .x = args.x.data,
                                           .y = args.y.data,
                                           .rows = args.y.dim(0),
                                           .width = args.y.dim(1)};
  if (args.weights)
    check(kernels::launch_weighted_activation({forward, row_weights(args.weights, args.sources)}, stream_),
          "activation with weights");
  else
    check(kernels::launch_activation(forward, stream_), "activation");
}

template <>
void CudaOps::compute(const ActivationBackArgs& args) {
  const kernels::ActivationBackward backward{.scalar = scalar_of(args.x.dtype),
                                             .curve = curve_of(args.kind),
                                             .gated = is_gated(args.kind),
                                             .dy = args.dy.data,
                                             .x = args.x.data,
                                             .dx = args.dx.data,
                                             .rows = args.dy.dim(0),
                                             .width = args.dy.dim(1)};
  if (!args.weights) return check(kernels::launch_activation_back(backward, stream_), "activation_back");
  const kernels::WeightedActivationBack weighted{backward, row_weights(args.weights, args.sources),
                                                 args.dweights.as<float>()};
  check(kernels::launch_weighted_activation_back(weighted, stream_), "activation_back with weights");
}

template <>
void CudaOps::compute(const DropoutArgs& args) {
  const kernels::Dropout dropout{.scalar = scalar_of(args.x.dtype),
                                 .x = args.x.data,
                                 .residual = args.residual.data,
                                 .row_ids = args.rows.as<std::int64_t>(),
                                 .y = args.y.data,
                                 .key = args.key.seed,
                                 .least_kept = least_kept_bits(args.rate),
                                 .kept = 1.0f / (1.0f - args.rate),
                                 .rows = args.x.dim(0),
                                 .width = args.x.dim(1)};
  check(kernels::launch_dropout(dropout, stream_), "dropout");
}

}  // namespace tera::cuda
