#pragma once
#include "tera/backend/cuda/kernels/types.cuh"

namespace tera::cuda::kernels {

// Keys and values of heads from what they are made of, or the gradients the other way; see tera/ops/latent_heads.h.
struct LatentHeads {
  Scalar scalar;
  void* kv;      // [rows, heads, own + values]
  void* rotary;  // [rows, head - own]
  void *k, *v;   // [rows, heads, head]
  std::int64_t rows, rotary_stride;
  int heads, head, own, values;
};

cudaError_t launch_latent_heads(const LatentHeads& args, cudaStream_t stream);       // writes k and v
cudaError_t launch_latent_heads_back(const LatentHeads& args, cudaStream_t stream);  // writes kv and rotary

}  // namespace tera::cuda::kernels
