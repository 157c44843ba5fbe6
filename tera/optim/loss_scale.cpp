#include "tera/optim/loss_scale.h"

#include <algorithm>

#include "tera/ops/ops.h"

namespace tera {

LossScaler::LossScaler(const MixedPrecisionConfig& config)
    : rule_{.dynamic = config.loss_scale == 0,
            .min_scale = config.min_loss_scale,
            .window = config.loss_scale_window,
            .hysteresis = config.hysteresis},
      initial_(rule_.dynamic ? config.initial_loss_scale : config.loss_scale) {}

void LossScaler::bind(Arena& arena) {
  state_ = arena.take(shape(static_cast<int>(ScaleState::count)), DType::f64, "loss scale");
}

LossScale LossScaler::start(Ops& ops, std::int64_t updates, const std::optional<LossScale>& kept) const {
  ScaleReading values{
      .scale = initial_, .hysteresis = static_cast<double>(rule_.hysteresis), .updates = static_cast<double>(updates)};
  if (kept && rule_.dynamic) {
    values.scale = std::max(kept->scale, rule_.min_scale);  // min_loss_scale may have changed
    values.good_steps = static_cast<double>(kept->good_steps);
    values.hysteresis = static_cast<double>(kept->hysteresis);
  }
  ops.from_host(std::as_bytes(std::span(&values, 1)), state_);
  return values.to_keep();
}

void LossScaler::scale(Ops& ops, const Tensor& weights, const Tensor& scaled) const {
  ops(ScaleLossArgs{.x = weights, .state = state_, .out = scaled});
}

}  // namespace tera
