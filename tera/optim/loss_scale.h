#pragma once
// Dynamic loss scaling: losses are multiplied by a scale, so that small gradients do not underflow in fp16; the update
// divides by it. A step whose gradients overflow is skipped, on all ranks, and reduces the scale; after many good steps
// it grows. All of it is decided in device memory: ScaleState in ops/optim.h.

#include <cstdint>
#include <optional>

#include "tera/config/sections/mixed_precision.h"
#include "tera/ops/optim.h"
#include "tera/tensor/arena.h"

namespace tera {

class Ops;

// The state of a dynamic loss scale in a checkpoint.
struct LossScale {
  double scale = 0;
  std::int64_t good_steps = 0, hysteresis = 0;
  bool operator==(const LossScale&) const = default;
};

// ScaleState as the host reads it, element by element.
struct ScaleReading {
  double scale = 0, good_steps = 0, hysteresis = 0, updates = 0, skipped = 0;
  LossScale to_keep() const {
    return {scale, static_cast<std::int64_t>(good_steps), static_cast<std::int64_t>(hysteresis)};
  }
};
static_assert(sizeof(ScaleReading) == sizeof(double) * static_cast<int>(ScaleState::count));

class LossScaler {
 public:
  explicit LossScaler(const MixedPrecisionConfig& config);
  // A scale that stays. That of 1 changes no bit: it counts updates on the device, where steps may be skipped for other
  // reasons than overflows.
  static LossScaler constant(double scale) { return LossScaler(LossScaleRule{.dynamic = false}, scale); }

  void bind(Arena& arena);
  // Before the first step: starts with the initial scale, or after so many updates with the one that a checkpoint has
  // kept. Returns what it starts with.
  LossScale start(Ops& ops, std::int64_t updates = 0, const std::optional<LossScale>& kept = {}) const;

  // f32 [n]: loss weights, multiplied by the scale.
  void scale(Ops& ops, const Tensor& weights, const Tensor& scaled) const;

  const LossScaleRule& rule() const { return rule_; }
  double initial() const { return initial_; }     // scale of a new run; a constant scale keeps it
  const Tensor& state() const { return state_; }  // f64 [ScaleState::count]

 private:
  LossScaler(const LossScaleRule& rule, double initial) : rule_(rule), initial_(initial) {}

  LossScaleRule rule_;
  double initial_;
  Tensor state_;
};

}  // namespace tera
