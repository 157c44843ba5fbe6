#pragma once
// MoE routers in a step: how many rows chose each expert, the router state that follows from it (optim/expert_load.h),
// and the auxiliary losses.

#include <vector>

#include "tera/config/setup.h"
#include "tera/optim/expert_load.h"
#include "tera/train/step/step_feature.h"

namespace tera {

class RouterState final : public StepFeature {
 public:
  RouterState(const Setup& setup, const ParamStore& params);  // MoE models only
  void describe(StepBoard& board) override;
  void bind(const FeatureArenas& arenas) override;
  void attach(std::int64_t index, MicroBatch& batch) override;
  void load(Ops& ops, const LoadedMicroBatch& loaded) override;
  void begin_step(Ops& ops) override { load_.clear(ops); }
  void after_backward(const StepRun& run) override;
  void after_update(Ops& ops, const Tensor& grad_factor) override { load_.update(ops, grad_factor); }
  void report(const StepReading& reading, const ReportedStep& step, MetricList& metrics) override;

 private:
  struct Loss {  // that the model has
    std::string_view name;
    AuxLoss kind;
    double divisor;  // divisor of the sum over one layer and one microbatch
  };
  void report_load(std::span<const std::int32_t> counts, MetricList& metrics);

  StepBoard* board_ = nullptr;
  ExpertLoad load_;
  std::size_t layers_, experts_;  // layers with experts, in order
  std::int64_t micro_batch_;
  bool log_load_;
  std::vector<Loss> losses_;
  std::vector<double> max_over_mean_, unused_;  // [layers]
  std::int64_t kind_ = 0;
  std::size_t sums_ = 0, counts_ = 0;  // ids
};

}  // namespace tera
