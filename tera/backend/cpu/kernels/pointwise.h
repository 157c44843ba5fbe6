#pragma once
#include <cstdint>

#include "tera/backend/cpu/kernels/isa.h"

namespace tera::cpu {

// Rows of y have `width` columns; rows of x as many, or twice as many (gate, then up) when the activation is gated.
// With sources, a row is scaled by the weight of its source; -1: it becomes zeros, -2: it is not written.
struct ActivationForward {
  const void* x;
  void* y;
  std::int64_t width;
  const float* weights;         // may be null, with sources
  const std::int32_t* sources;  // [rows]
};
struct ActivationBackward {
  const void *dy, *x;
  void* dx;
  std::int64_t width;
  const float* weights;  // may be null, with sources and dweights
  const std::int32_t* sources;
  float* dweights;
};
struct DropoutForward {
  const void *x, *residual;  // residual may be null
  void* y;
  const std::int64_t* rows;
  std::uint64_t key;
  float rate;
  std::int64_t width;
};

// First index: gelu, gelu_tanh, squared_relu, silu, swiglu, geglu, geglu_tanh. Second: f32, bf16, f16.
struct PointwiseKernels {
  void (*activation[7][3])(const ActivationForward& args, std::int64_t begin, std::int64_t end);
  void (*activation_back[7][3])(const ActivationBackward& args, std::int64_t begin, std::int64_t end);
  void (*dropout[3])(const DropoutForward& args, std::int64_t begin, std::int64_t end);
};

template <Isa isa>
const PointwiseKernels& pointwise_kernels();

}  // namespace tera::cpu
