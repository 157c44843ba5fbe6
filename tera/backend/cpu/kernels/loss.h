#pragma once
#include <cstdint>

#include "tera/backend/cpu/kernels/isa.h"

namespace tera::cpu {

struct CrossEntropyRows {
  void* logits;
  const std::int32_t* targets;
  float* token_loss;
  const float* stats;         // [parts,rows,3], see tera/ops/loss.h; null: the softmax is over this row alone
  std::int64_t parts, rows;   // shape of stats
  std::int64_t first;         // vocabulary id of the first column; targets count from column 0 of all parts
  std::int64_t used, stride;  // columns of the softmax, columns of a row
  float scale;
};
struct SoftmaxStatsRows {
  const void* logits;
  const std::int32_t* targets;
  float* stats;  // [rows,3]
  std::int64_t first, used, stride;
};

// Last index: f32, bf16, f16.
struct LossKernels {
  // First index: a row has the full vocabulary, is merged with other parts. Second: gradient, loss only.
  void (*cross_entropy[2][2][3])(const CrossEntropyRows& args, std::int64_t begin, std::int64_t end);
  void (*stats[3])(const SoftmaxStatsRows& args, std::int64_t begin, std::int64_t end);
};

template <Isa isa>
const LossKernels& loss_kernels();

}  // namespace tera::cpu
