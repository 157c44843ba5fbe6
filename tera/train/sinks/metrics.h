#pragma once
// The metrics of a run and their sinks. A new destination is one MetricsSink; a new number of a step changes none.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "tera/base/file.h"

namespace tera {

// Rows of so many columns.
struct MetricTable {
  std::span<const std::int32_t> values;
  std::size_t columns = 1;
};

// A number of a step, or several. monostate: it is not known here.
using MetricValue = std::variant<std::monostate, double, std::int64_t, bool, std::span<const double>, MetricTable>;

struct Metric {
  std::string_view name;  // its key in metrics.jsonl
  MetricValue value;
  std::string_view console{};  // how the console shows a double, as "mtp loss {:.4f}"; empty: not at all
};

// The numbers of a step in the order of the log. Memory is kept from step to step.
class MetricList {
 public:
  MetricList() { metrics_.reserve(64); }
  void clear() { metrics_.clear(); }
  void add(std::string_view name, const MetricValue& value, std::string_view console = {}) {
    metrics_.push_back({name, value, console});
  }
  template <class T>
  void add_if_any(std::string_view name, const std::optional<T>& value) {
    if (value) add(name, *value);
  }
  std::span<const Metric> all() const { return metrics_; }

 private:
  std::vector<Metric> metrics_;
};

struct StepMetrics {
  std::int64_t step = 0;             // from 1
  std::span<const Metric> values{};  // every run has loss, grad_norm, lr, tokens, step_ms, data_ms, tokens_per_s,
                                     // tflops_per_device, mfu (not known without the device's peak) and skipped

  const Metric* find(std::string_view name) const;
  std::optional<double> maybe(std::string_view name) const;  // none: it is not there, or not known
  double number(std::string_view name) const;                // it must be there
  bool is_set(std::string_view name) const;                  // a bool that is there, and true
};

struct SetLoss {
  std::string_view name;
  double loss = 0;
};

struct EvalMetrics {
  std::int64_t step = 0;  // steps trained so far
  double eval_loss = 0;
  std::int64_t tokens = 0;          // trained on so far
  std::span<const SetLoss> sets{};  // one for each validation set, where there are several
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
  JsonlSink(const std::filesystem::path& path, AppendFile::Start start);
  void step(const StepMetrics& metrics) override;
  void eval(const EvalMetrics& metrics) override;

 private:
  AppendFile file_;
  std::vector<char> line_;  // grows in the first step, if the metrics of a step need more
};

}  // namespace tera
