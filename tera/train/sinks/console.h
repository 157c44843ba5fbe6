#pragma once
// Training as the user sees it: a line every log_interval steps and, on a terminal, a live bar below.

#include <chrono>
#include <cstdint>

#include "tera/base/log.h"
#include "tera/train/sinks/metrics.h"

namespace tera {

class ConsoleSink final : public MetricsSink {
 public:
  struct Options {
    std::int64_t total_steps = 0;
    std::int64_t log_interval = 1;
  };
  ConsoleSink(Log& log, const Options& options) : log_(log), options_(options) {}
  void step(const StepMetrics& metrics) override;
  void eval(const EvalMetrics& metrics) override;
  void finish() override { log_.clear_status(); }

 private:
  double eta_seconds(std::int64_t step) const;
  void draw_bar(const StepMetrics& metrics);
  void print_line(const StepMetrics& metrics);

  Log& log_;
  Options options_;
  double smooth_ms_ = 0;  // step time, averaged over about the last twenty steps
  std::int64_t seen_ = 0;
  std::int64_t skipped_ = 0;  // steps since the last line
  std::chrono::steady_clock::time_point drawn_{};
};

}  // namespace tera
