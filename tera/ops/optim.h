#pragma once
#include "tera/tensor/tensor.h"

namespace tera {

// Values that change from step to step live in device memory, so that a captured step can be replayed.
enum class StepScalar : int { lr, correction1, correction2, grad_factor, count };

// So does what loss scaling keeps, in f64, where counts are exact: the factor of all losses; steps without an overflow
// since the last one or since the factor grew; overflows that are let pass before it falls; updates that were made, of
// the whole run; and whether the last step was skipped, 0 or 1.
enum class ScaleState : int { scale, good_steps, hysteresis, updates, skipped, count };

inline constexpr double most_loss_scale = 0x1p126;  // it grows no further, so that it stays a finite float

// How the scale changes. A constant one does not.
struct LossScaleRule {
  bool dynamic = true;
  double min_scale = 1;
  std::int64_t window = 1000, hysteresis = 2;  // both at least 1
  bool operator==(const LossScaleRule&) const = default;
};

// out = x * scale, rounded once. x and out f32 [n]; state f64 [ScaleState::count].
struct ScaleLossArgs {
  Tensor x, state, out;
  void check() const;
};

// out[0] = sum of squares of x, fp64, fixed order. x f32 dense; out f64 [1].
struct SumSquaresArgs {
  Tensor x, out;
  void check() const;
};

// norm = sqrt(sum of sums, in order); factor = min(1, max_norm / (norm + 1e-6)), or 1 when max_norm is 0. A norm that
// is not finite gives factor = NaN, whatever max_norm is. With the state of a loss scale the sums are of gradients
// times it: norm is that of the gradients themselves, and factor also takes the scale out of them.
struct ClipArgs {
  Tensor sums;          // f64 [P], one per parameter in name order
  Tensor norm, factor;  // f32 [1]
  Tensor state = {};    // optional: f64 [ScaleState::count]
  float max_norm = 0;
  void check() const;
};

// Ends a step whose losses were scaled, after clip and before the update. A grad_factor that is finite makes it an
// update, any other one an overflow:
//
//   update    updates + 1, good_steps + 1; with `window` good steps the scale doubles, these are counted anew, and
//             hysteresis is whole again
//   overflow  good_steps = 0, hysteresis - 1; at 0 the scale is halved, but not below min_scale
//
// The scalars of the update are written here, as the host cannot know how many steps were skipped: bias corrections by
// the number of updates, and the learning rate, of two, by whether the step before was skipped.
struct CountStepArgs {
  Tensor state;                 // f64 [ScaleState::count]
  Tensor scalars;               // f32 [StepScalar::count]
  Tensor rates;                 // f32 [2]: after an update, after a step that was skipped
  double beta1 = 0, beta2 = 0;  // of adam
  LossScaleRule rule{};
  void check() const;
};

// weight -= lr * (m^ / (sqrt(v^) + eps) + weight_decay * weight), m^ = m / correction1, v^ = v / correction2, with the
// gradient first multiplied by grad_factor.
//
// Both optimizers skip the step when grad_factor is not finite: weight, moments and copy stay as they are; clear_grad
// holds all the same. The decision is made where the factor lies, so no host waits for it.
//
// A moment in bf16 is widened when it is read, and its new value rounded (to nearest even) when it is stored; the
// weight moves by what it was before that rounding.
struct AdamArgs {
  Tensor weight, grad;                // f32 [n]
  Tensor m, v;                        // f32 or bf16 [n], each for itself
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
