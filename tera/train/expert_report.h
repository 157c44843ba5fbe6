#pragma once
// Expert load of a run (MoE): from the sums of a step to the numbers of a log.

#include <vector>

#include "tera/config/setup.h"
#include "tera/train/sinks/metrics.h"
#include "tera/train/training_step.h"

namespace tera {

class ExpertReport {
 public:
  explicit ExpertReport(const Setup& setup);  // MoE models only

  // The numbers of a step with so many samples. Valid until the next call.
  ExpertMetrics report(const TrainingStep::Result& result, std::int64_t samples);

  static JsonlSink::Capacity capacity(const Setup& setup);  // none for a model without experts

 private:
  std::size_t layers_, experts_;
  std::int64_t micro_batch_, rows_;  // rows: of a microbatch
  bool log_load_;
  struct Loss {
    AuxLoss kind;
    double divisor;  // divisor of the sum over one layer and one microbatch
    std::optional<double> ExpertMetrics::*to;
  };
  std::vector<Loss> losses_;
  std::vector<double> max_over_mean_, unused_;  // [layers]
};

}  // namespace tera
