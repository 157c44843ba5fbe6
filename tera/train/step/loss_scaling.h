#pragma once
// The count of updates, and the loss scale of fp16 (optim/loss_scale.h). The device counts wherever a step may be
// skipped, for a loss scale or for a veto; elsewhere the host does.

#include <optional>

#include "tera/config/setup.h"
#include "tera/optim/loss_scale.h"
#include "tera/train/step/step_feature.h"

namespace tera {

class LossScaling final : public StepFeature {
 public:
  explicit LossScaling(const Setup& setup);
  void describe(StepBoard& board) override { board_ = &board; }
  // When all features have described themselves, since a veto among them needs the count on the device.
  void describe_state();
  void bind(const FeatureArenas& arenas) override;
  void start(Ops& ops) override { start_from(ops, {}); }
  void begin_step(Ops& ops) override;
  void read(const StepReading& reading, StepScalars::When of) override;
  void keep(CheckpointSource& source) const override;
  void resume(Ops& ops, const CheckpointSource& source) override;

  // The number of the next update, from 1; not used where the device counts.
  std::int64_t next_update();
  // Updates, and the dynamic loss scale after them, of the steps that were read.
  std::int64_t updates() const { return updates_; }
  const std::optional<LossScale>& dynamic_scale() const { return scale_; }
  const LossScaler* scaler() const { return scaler_ ? &*scaler_ : nullptr; }  // none: the host counts
  bool scales_losses() const { return scales_losses_; }                       // fp16

  // The state after a step; zeros where the host counts.
  static ScaleReading state_of(const StepReading& reading);

 private:
  void start_from(Ops& ops, const std::optional<LossScale>& kept);

  StepBoard* board_ = nullptr;
  bool scales_losses_;
  std::optional<LossScaler> scaler_;
  std::size_t state_ = 0;  // id
  std::int64_t updates_ = 0;
  std::optional<LossScale> scale_;
};

}  // namespace tera
