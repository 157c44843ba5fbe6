#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "tera/backend/cuda/kernels/types.cuh"

namespace tera::cuda::kernels {

enum class Curve : std::uint8_t { gelu, gelu_tanh, squared_relu, silu };

// y [rows, width]; x [rows, width], or [rows, 2 width] = [gate | up] when gated. Dense.
struct ActivationForward {
  Scalar scalar;
  Curve curve;
  bool gated;
  const void* x;
  void* y;
  std::int64_t rows, width;
};
// dx like x, may be x.
struct ActivationBackward {
  Scalar scalar;
  Curve curve;
  bool gated;
  const void *dy, *x;
  void* dx;
  std::int64_t rows, width;
};
// The routing weights of experts' rows: each row has the weight of its source. Source -1: the row becomes zeros, -2: it
// is left alone; one beyond the weights makes it NaN.
struct RowWeights {
  const float* weights;         // [choices]
  const std::int32_t* sources;  // [rows]
  std::int64_t choices;
};
struct WeightedActivation {
  ActivationForward activation;
  RowWeights of_rows;
};
// dweights[source] = sum of dy * y before the weight.
struct WeightedActivationBack {
  ActivationBackward activation;
  RowWeights of_rows;
  float* dweights;  // [choices]
};
// y = residual + mask * x * kept; y may be x or residual. Dense [rows, width].
struct Dropout {
  Scalar scalar;
  const void *x, *residual;     // residual may be null
  const std::int64_t* row_ids;  // [rows]
  void* y;
  std::uint64_t key;
  std::uint32_t least_kept;  // an element is dropped when its random bits are below
  float kept;                // 1 / (1 - rate)
  std::int64_t rows, width;
};

cudaError_t launch_activation(const ActivationForward& args, cudaStream_t stream);
cudaError_t launch_activation_back(const ActivationBackward& args, cudaStream_t stream);
cudaError_t launch_weighted_activation(const WeightedActivation& args, cudaStream_t stream);
cudaError_t launch_weighted_activation_back(const WeightedActivationBack& args, cudaStream_t stream);
cudaError_t launch_dropout(const Dropout& args, cudaStream_t stream);

}  // namespace tera::cuda::kernels
