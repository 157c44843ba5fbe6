#pragma once
#include <cstdint>

#include "tera/backend/cpu/kernels/isa.h"

namespace tera::cpu {

struct CrossEntropyRows {
  void* logits;
  const std::int32_t* targets;
  float* token_loss;
  std::int64_t vocab, stride;  // columns of the softmax, columns of a row
  float scale;
};

// First index: gradient, loss only. Second: f32, bf16, f16.
struct LossKernels {
  void (*cross_entropy[2][3])(const CrossEntropyRows& args, std::int64_t begin, std::int64_t end);
};

template <Isa isa>
const LossKernels& loss_kernels();

}  // namespace tera::cpu
