#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "tera/backend/cuda/kernels/types.cuh"

namespace tera::cuda::kernels {

// Loss of each row of logits [rows, columns] and, unless loss_only, its gradient in place; see tera/ops/loss.h.
struct CrossEntropy {
  Scalar scalar;
  bool loss_only;
  void* logits;                 // dense
  const std::int32_t* targets;  // [rows]
  float* token_loss;            // [rows]
  const float* scale;           // [1], on the device; null when loss_only
  std::int64_t rows, columns, vocab;
  int kept_pairs;  // set by the launch: how many pairs of a thread's packs shared memory keeps between the two sweeps
};

cudaError_t launch_cross_entropy(const CrossEntropy& args, cudaStream_t stream);

}  // namespace tera::cuda::kernels
