#pragma once
// What a run measures, and where the numbers go. A new destination is one MetricsSink.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>

#include "tera/base/file.h"

namespace tera {

struct StepMetrics {
  std::int64_t step = 0;  // from 1
  double loss = 0, grad_norm = 0, lr = 0;
  std::int64_t tokens = 0;  // so far
  double step_ms = 0;
  double data_ms = 0;  // of these, waiting for data
  double tokens_per_s = 0, tflops_per_device = 0;
  std::optional<std::int64_t> global_batch_size;  // while it changes over the run
  std::optional<double> mfu;                      // a fraction; none where the device's peak is not known
  std::optional<double> loss_scale;               // fp16 only
  bool skipped = false;
};

struct SetLoss {
  std::string_view name;
  double loss = 0;
};

struct EvalMetrics {
  std::int64_t step = 0;  // steps trained so far
  double eval_loss = 0;
  std::int64_t tokens = 0;          // trained on so far
  std::span<const SetLoss> sets{};  // of each validation set, where there are several
};

// Called by one thread; must not allocate in step().
class MetricsSink {
 public:
  virtual ~MetricsSink() = default;
  virtual void step(const StepMetrics& metrics) = 0;
  virtual void eval(const EvalMetrics& metrics) = 0;
  virtual void finish() {}  // after the last step
};

// metrics.jsonl: one object per line, written through at once. Floats have the fewest digits that read back to the same
// bits; JSON has no NaN or infinity, so these are the strings "nan", "inf" and "-inf". mfu is null where not known.
class JsonlSink final : public MetricsSink {
 public:
  JsonlSink(const std::filesystem::path& path, AppendFile::Start start) : file_(path, start) {}
  void step(const StepMetrics& metrics) override;
  void eval(const EvalMetrics& metrics) override;

 private:
  AppendFile file_;
};

}  // namespace tera
