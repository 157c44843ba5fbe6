#pragma once
#include "tera/tensor/tensor.h"

namespace tera {

// Values that change from step to step live in device memory, so that a captured step can be replayed.
enum class StepScalar : int { lr, correction1, correction2, grad_factor, count };

// out[0] = sum of squares of x, fp64, fixed order. x f32 dense; out f64 [1].
struct SumSquaresArgs {
  Tensor x, out;
  void check() const;
};

// norm = sqrt(sum of sums, in order); factor = min(1, max_norm / (norm + 1e-6)), or 1 when max_norm is 0. A norm that
// is not finite gives factor = NaN, whatever max_norm is.
struct ClipArgs {
  Tensor sums;          // f64 [P], one per parameter in name order
  Tensor norm, factor;  // f32 [1]
  float max_norm = 0;
  void check() const;
};

// weight -= lr * (m^ / (sqrt(v^) + eps) + weight_decay * weight), m^ = m / correction1, v^ = v / correction2, with the
// gradient first multiplied by grad_factor.
//
// Both optimizers skip the step when grad_factor is not finite: weight, moments and copy stay as they are; clear_grad
// holds all the same. The decision is made where the factor lies, so no host waits for it.
struct AdamArgs {
  Tensor weight, grad, m, v;          // f32 [n]
  Tensor copy;                        // optional: the weight rounded to the dtype that compute uses
  Tensor scalars;                     // f32 [StepScalar::count]
  double beta1 = 0.9, beta2 = 0.999;  // double, because 1 - beta is formed from them
  float eps = 1e-8f, weight_decay = 0;
  bool clear_grad = false;  // leave zeros for the next step
  void check() const;
};

// buffer = momentum * buffer + grad_factor * grad + weight_decay * weight; weight -= lr * buffer. Skipped like adam.
struct SgdArgs {
  Tensor weight, grad, momentum_buffer;  // f32 [n]; no buffer: plain descent
  Tensor copy, scalars;
  float momentum = 0, weight_decay = 0;
  bool clear_grad = false;
  void check() const;
};

}  // namespace tera
