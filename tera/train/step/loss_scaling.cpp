#include "tera/train/step/loss_scaling.h"

namespace tera {

LossScaling::LossScaling(const Setup& setup)
    : StepFeature(FeatureOrder::loss_scale), scales_losses_(setup.config.mixed_precision.precision == Precision::fp16) {
  if (scales_losses_) scaler_.emplace(setup.config.mixed_precision);
}

void LossScaling::describe_state() {
  if (!scaler_ && board_->vetoes.any()) scaler_.emplace(LossScaler::constant(1));
  if (!scaler_) return;
  state_ = board_->scalars.add(
      {.name = "scale_state", .combine = Combine::same, .count = static_cast<std::int64_t>(ScaleState::count)});
}

void LossScaling::bind(const FeatureArenas& arenas) {
  if (!scaler_) return;
  scaler_->bind(arenas.optimizer);
  board_->scalars.attach(state_, scaler_->state());
}

void LossScaling::begin_step(Ops& ops) {
  if (scales_losses_) scaler_->scale(ops, board_->weights.plain(), board_->weights.scaled());
}

void LossScaling::read(const StepReading& reading, StepScalars::When of) {
  if (!scaler_ || of != StepScalars::When::step) return;
  const ScaleReading state = state_of(reading);
  updates_ = static_cast<std::int64_t>(state.updates);
  if (scaler_->rule().dynamic) scale_ = state.to_keep();
}

void LossScaling::keep(CheckpointSource& source) const {
  source.updates = updates_;
  source.loss_scale = scale_;
}

void LossScaling::resume(Ops& ops, const CheckpointSource& source) {
  updates_ = source.updates;
  start_from(ops, source.loss_scale);
}

std::int64_t LossScaling::next_update() {
  if (!scaler_) ++updates_;
  return updates_;
}

ScaleReading LossScaling::state_of(const StepReading& reading) {
  const std::span<const double> state = reading.values<double>("scale_state");
  if (state.empty()) return {};
  const auto at = [&](ScaleState element) { return state[static_cast<std::size_t>(element)]; };
  return {.scale = at(ScaleState::scale),
          .good_steps = at(ScaleState::good_steps),
          .hysteresis = at(ScaleState::hysteresis),
          .updates = at(ScaleState::updates),
          .skipped = at(ScaleState::skipped)};
}

void LossScaling::start_from(Ops& ops, const std::optional<LossScale>& kept) {
  if (!scaler_) return;
  const LossScale begun = scaler_->start(ops, updates_, kept);
  if (scaler_->rule().dynamic) scale_ = begun;
}

}  // namespace tera
