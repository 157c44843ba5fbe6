#pragma once
#include "tera/ops/op_list.h"
#include "tera/tensor/tensor.h"

namespace tera {

// Scalars that change from step to step are in device memory, so that a captured CUDA graph of a step can be replayed.
enum class StepScalar : int { lr, correction1, correction2, grad_factor, count };

// The state of dynamic loss scaling is in device memory, too, in f64, where counts are exact. scale: the factor of all
// losses; good_steps: steps since the last overflow or the last growth of the scale; hysteresis: overflows that are
// tolerated before the scale falls; updates: updates in the run so far; skipped: whether the last step was skipped, 0
// or 1.
enum class ScaleState : int { scale, good_steps, hysteresis, updates, skipped, count };

inline constexpr double max_loss_scale = 0x1p126;  // growth stops here, so that it stays a finite float

// How a dynamic loss scale changes; a constant one does not.
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

  static constexpr OpKind op_kind = OpKind::optimizer;
};

// out[0] = sum of squares of x, fp64, fixed order. x f32 dense; out f64 [1].
struct SumSquaresArgs {
  Tensor x, out;
  void check() const;

  static constexpr OpKind op_kind = OpKind::optimizer;
};

// norm = sqrt(sum of sums, in order); factor = min(1, max_norm / (norm + 1e-6)), or 1 when max_norm is 0. A norm that
// is not finite gives factor = NaN for every max_norm. With the state of a loss scale the sums are of scaled gradients:
// norm is that of the unscaled ones, and factor also unscales.
struct ClipArgs {
  Tensor sums;          // f64 [P], one per parameter in name order
  Tensor norm, factor;  // f32 [1]
  Tensor state = {};    // optional: f64 [ScaleState::count]
  float max_norm = 0;
  void check() const;

  static constexpr OpKind op_kind = OpKind::optimizer;
};

// Ends a step of mixed-precision training with loss scaling, after clip and before the update. A finite grad_factor
// makes the step an update, any other one an overflow:
//
//   update    updates + 1, good_steps + 1; with `window` good steps the scale doubles, good_steps = 0, and hysteresis
//   is
//             back at its full value
//   overflow  good_steps = 0, hysteresis - 1; at 0 the scale is halved, but not below min_scale
//
// The scalars of the update are written here, as the host does not know how many steps were skipped: the bias
// corrections of the number of updates, and one of two learning rates, depending on whether the last step was skipped.
struct CountStepArgs {
  Tensor state;                 // f64 [ScaleState::count]
  Tensor scalars;               // f32 [StepScalar::count]
  Tensor rates;                 // f32 [2]: after an update, after a step that was skipped
  double beta1 = 0, beta2 = 0;  // decay rates of Adam's moments
  LossScaleRule rule{};
  void check() const;

  static constexpr OpKind op_kind = OpKind::optimizer;
};

// weight -= lr * (m^ / (sqrt(v^) + eps) + weight_decay * weight), m^ = m / correction1, v^ = v / correction2, with the
// gradient first multiplied by grad_factor.
//
// Both optimizers skip the step when grad_factor is not finite: weight, moments and copy stay as they are, but
// clear_grad still clears. The decision is made on the device, so the host does not wait for it.
//
// A moment in bf16 is widened when it is read, and its new value rounded (to nearest even) when it is stored; the
// weight moves by what it was before that rounding.
struct AdamArgs {
  Tensor weight, grad;                // f32 [n]
  Tensor m, v;                        // f32 or bf16 [n], independently
  Tensor copy;                        // optional: the weight rounded to the dtype that compute uses
  Tensor scalars;                     // f32 [StepScalar::count]
  double beta1 = 0.9, beta2 = 0.999;  // double, because 1 - beta is formed from them
  float eps = 1e-8f, weight_decay = 0;
  bool clear_grad = false;  // zero grad for the next step
  void check() const;

  static constexpr OpKind op_kind = OpKind::optimizer;
};

// buffer = momentum * buffer + grad_factor * grad + weight_decay * weight; weight -= lr * buffer. Skipped like adam.
struct SgdArgs {
  Tensor weight, grad, momentum_buffer;  // f32 [n]; no buffer: plain descent
  Tensor copy, scalars;
  float momentum = 0, weight_decay = 0;
  bool clear_grad = false;
  void check() const;

  static constexpr OpKind op_kind = OpKind::optimizer;
};

}  // namespace tera
