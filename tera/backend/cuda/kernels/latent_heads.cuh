#pragma once
#include "tera/backend/cuda/kernels/types.cuh"

namespace tera::cuda::kernels {

// Keys and values of MLA's heads from the up-projection and the shared rotary key, or their gradients; see
// tera/ops/latent_heads.h. nope: key channels of a head without rotary embedding.
struct LatentHeads {
  Scalar scalar;
  void* kv;      // [rows, heads, nope + values]
  void* rotary;  // [rows, head - nope]
  void *k, *v;   // [rows, heads, head]
  std::int64_t rows, rotary_stride;
  int heads, head, nope, values;
};

cudaError_t launch_latent_heads(const LatentHeads& args, cudaStream_t stream);       // writes k and v
cudaError_t launch_latent_heads_back(const LatentHeads& args, cudaStream_t stream);  // writes kv and rotary

}  // namespace tera::cuda::kernels
