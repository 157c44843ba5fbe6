#pragma once
#include "tera/backend/cuda/kernels/types.cuh"

namespace tera::cuda::kernels {

// MoE dispatch: y[r] = x[sources[r] / topk]; source -1: zeros, -2: the row is left alone; one beyond all tokens: NaN.
// Dense.
struct Permute {
  Scalar scalar;
  const void* x;                // [tokens, width]
  const std::int32_t* sources;  // [rows]
  void* y;                      // [rows, width]
  std::int64_t tokens, rows, width;
  std::int32_t topk;
};

// MoE combine: y[t] = residual[t] + x[places[t,0]] + ..., fp32 sums in this order; negative places add nothing, one
// beyond all rows makes NaN. y may be residual. Dense.
struct Unpermute {
  Scalar scalar;
  const void *x, *residual;    // [rows, width]; [tokens, width], may be null
  const std::int32_t* places;  // [tokens, topk]
  void* y;                     // [tokens, width]
  std::int64_t tokens, rows, width, topk;
};

cudaError_t launch_permute(const Permute& args, cudaStream_t stream);
cudaError_t launch_unpermute(const Unpermute& args, cudaStream_t stream);

}  // namespace tera::cuda::kernels
