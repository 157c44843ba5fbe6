#pragma once
// Losses are multiplied by a scale, so that small gradients are not lost in fp16; the update takes it out again. A step
// whose gradients overflow is skipped, on all ranks, and makes the scale smaller; after many good ones it grows. All of
// it is decided in device memory: ScaleState in ops/optim.h.

#include <cstdint>
#include <optional>

#include "tera/config/mixed_precision.h"
#include "tera/ops/optim.h"
#include "tera/tensor/arena.h"

namespace tera {

class Ops;

// What a checkpoint keeps of a scale that changes.
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

  void bind(Arena& arena);
  // Before the first step: as a run begins, or after so many updates with the scale that a checkpoint has kept. Returns
  // what it starts with.
  LossScale start(Ops& ops, std::int64_t updates = 0, const std::optional<LossScale>& kept = {}) const;

  // f32 [n]: what losses count in the gradient, to what they count with the scale.
  void scale(Ops& ops, const Tensor& weights, const Tensor& scaled) const;

  const LossScaleRule& rule() const { return rule_; }
  double initial() const { return initial_; }     // of a run that begins; one that is constant stays so
  const Tensor& state() const { return state_; }  // f64 [ScaleState::count]

 private:
  LossScaleRule rule_;
  double initial_;
  Tensor state_;
};

}  // namespace tera
