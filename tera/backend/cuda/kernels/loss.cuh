#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "tera/backend/cuda/kernels/types.cuh"

namespace tera::cuda::kernels {

enum class Wanted : std::uint8_t { gradient, loss, stats };

// Fused cross-entropy: the loss of each row of logits [rows, columns] and, if wanted, its gradient in place; or else
// the stats of a vocabulary shard. See tera/ops/loss.h.
struct CrossEntropy {
  Scalar scalar;
  Wanted wanted;
  void* logits;                         // dense
  const std::int32_t* targets;          // [rows]
  float* result;                        // the loss [rows] or stats [rows,3]
  const float* scale;                   // [1], on the device; for the gradient
  std::int64_t rows, columns, vocab;    // vocab: columns that take part
  std::int64_t first, all_parts_vocab;  // for stats: column 0 and vocab, both counted over all shards
  int kept_pairs;  // set by the launch: how many pairs of a thread's packs shared memory keeps between the two sweeps
};

// Vocabulary-parallel cross-entropy, from the stats of all shards (parts) of the columns, of which logits are one.
struct MergedCrossEntropy {
  Scalar scalar;
  bool loss_only;
  void* logits;                             // [rows, columns], dense
  const std::int32_t* targets;              // [rows], columns of all shards
  float* token_loss;                        // [rows]
  const float* scale;                       // [1], on the device; null when loss_only
  const float* stats;                       // [parts, rows, 3]
  std::int64_t parts, rows, columns, used;  // used: columns that take part here
  std::int64_t first, vocab;                // column 0 here and columns that take part, both over all shards
};

cudaError_t launch_cross_entropy(const CrossEntropy& args, cudaStream_t stream);
cudaError_t launch_merged_cross_entropy(const MergedCrossEntropy& args, cudaStream_t stream);

}  // namespace tera::cuda::kernels
