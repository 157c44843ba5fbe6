#pragma once
// The metrics of a run and their sinks. A new destination is one MetricsSink.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "tera/base/file.h"

namespace tera {

// Metrics of an MoE model; `layers` are those that have experts, in order.
struct ExpertMetrics {
  // Means over layers and microbatches, without coefficients; none where the model has no such loss.
  std::optional<double> load_balancing_loss, seq_load_balancing_loss, global_load_balancing_loss, z_loss;
  // [layers]: load imbalance, the most tokens of an expert over the mean; and the fraction of experts without tokens.
  std::span<const double> load_max_over_mean{}, unused_experts{};
  std::span<const std::int32_t> load{};  // [layers,E]: tokens of the step routed to each expert, if requested
  std::size_t experts = 0;               // E
};

struct StepMetrics {
  std::int64_t step = 0;  // from 1
  double loss = 0, grad_norm = 0, lr = 0;
  std::int64_t tokens = 0;  // so far
  double step_ms = 0;
  double data_ms = 0;  // part of step_ms, waiting for data
  double tokens_per_s = 0, tflops_per_device = 0;
  std::optional<std::int64_t> global_batch_size;  // while it changes over the run
  std::optional<double> mfu;         // model FLOPs utilization, a fraction; none where the device's peak is not known
  std::optional<double> loss_scale;  // fp16 only
  bool skipped = false;
  // Dynamic context parallelism: pairs of a degree and how many microbatches, of all replicas, have it; and the
  // fraction of padding rows.
  std::span<const std::int32_t> cp_degrees{};
  std::optional<double> padding;
  std::span<const double> mtp_losses{};  // multi-token prediction, by depth: means over their targets
  ExpertMetrics experts{};

  std::optional<double> mtp_loss() const;  // their mean, where there are any
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
  // The largest line: numbers of MoE layers, and of expert loads over all layers.
  struct Capacity {
    std::size_t layers = 0, loads = 0;
  };
  JsonlSink(const std::filesystem::path& path, AppendFile::Start start, const Capacity& capacity);
  JsonlSink(const std::filesystem::path& path, AppendFile::Start start) : JsonlSink(path, start, Capacity{}) {}
  void step(const StepMetrics& metrics) override;
  void eval(const EvalMetrics& metrics) override;

 private:
  AppendFile file_;
  std::vector<char> line_;
};

}  // namespace tera
