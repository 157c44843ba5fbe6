#pragma once
// What a run tells of its experts: from the sums of a step to the numbers of a log.

#include <vector>

#include "tera/config/setup.h"
#include "tera/train/metrics.h"
#include "tera/train/training_step.h"

namespace tera {

class ExpertReport {
 public:
  explicit ExpertReport(const Setup& setup);  // of a model with experts

  // Of a step with so many samples. Valid until the next call.
  ExpertMetrics tell(const TrainingStep::Result& result, std::int64_t samples);

  static JsonlSink::Room room(const Setup& setup);  // none for a model without experts

 private:
  std::size_t layers_, experts_;
  std::int64_t micro_batch_, rows_;  // rows: of a microbatch
  bool log_load_;
  struct Loss {
    AuxLoss kind;
    double divisor;  // of a sum over one layer and one microbatch
    std::optional<double> ExpertMetrics::*to;
  };
  std::vector<Loss> losses_;
  std::vector<double> max_over_mean_, unused_;  // [layers]
};

}  // namespace tera
