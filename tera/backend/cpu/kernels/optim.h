#pragma once
#include <cstdint>

#include "tera/backend/cpu/kernels/isa.h"

namespace tera::cpu {

struct AdamStep {
  float *weight, *grad;
  void *m, *v;
  void* copy;  // may be null
  float lr, correction1, correction2, grad_factor;
  float beta1, beta2, one_minus_beta1, one_minus_beta2, eps, weight_decay;
  bool clear_grad;
};
struct SgdStep {
  float *weight, *grad, *momentum_buffer;  // the buffer may be null
  void* copy;                              // may be null
  float lr, grad_factor;
  float momentum, weight_decay;
  bool clear_grad;
};

// Indexed by the dtype of the copy: f32 (or none), bf16, f16; adam also, before it, by those of m and v: f32, bf16.
struct OptimKernels {
  using Adam = void (*)(const AdamStep& step, std::int64_t begin, std::int64_t end);
  Adam adam[2][2][3];
  void (*sgd[3])(const SgdStep& step, std::int64_t begin, std::int64_t end);
};

template <Isa isa>
const OptimKernels& optim_kernels();

}  // namespace tera::cpu
