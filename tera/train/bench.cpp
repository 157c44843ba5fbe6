#include "tera/train/bench.h"

#include <fmt/core.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "tera/base/error.h"
#include "tera/base/log.h"
#include "tera/base/signals.h"
#include "tera/train/profiling_ops.h"
#include "tera/train/trainer.h"

namespace tera {
namespace {

// Keeps step times and losses instead of writing them anywhere.
struct Recorder final : MetricsSink {
  void step(const StepMetrics& metrics) override {
    times.push_back(metrics.step_ms);
    losses.push_back(metrics.loss);
  }
  void eval(const EvalMetrics&) override {}
  std::vector<double> times, losses;
};

// Profiles one step: those reported before and after it are kept out, because on a GPU a step is reported when the next
// one has been enqueued already.
struct Profiler final : MetricsSink {
  Profiler(ProfilingOps& ops, std::int64_t first) : ops_(ops), first_(first) {}
  void step(const StepMetrics& metrics) override {
    if (metrics.step == first_) ops_.start();
    if (metrics.step == first_ + 1) profile = ops_.finish();
  }
  void eval(const EvalMetrics&) override {}

  static constexpr std::int64_t steps = 4;  // in all, untimed ones included
  Profile profile;

 private:
  ProfilingOps& ops_;
  std::int64_t first_;
};

std::size_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::size_t>(usage.ru_maxrss) * 1024;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

template <class Sink, class... Args>
Sink& add_sink(Trainer& trainer, Args&&... args) {
  auto sink = std::make_unique<Sink>(std::forward<Args>(args)...);
  Sink& added = *sink;
  trainer.add_sink(std::move(sink));
  return added;
}

nlohmann::json profile_json(const Profile& profile) {
  return {{"step_ms", profile.total_ms},
          {"gemm_ms", profile.of(WorkKind::gemm)},
          {"attention_ms", profile.of(WorkKind::attention)},
          {"memory_bound_ms", profile.of(WorkKind::memory_bound)},
          {"optimizer_ms", profile.of(WorkKind::optimizer)},
          {"transfer_ms", profile.of(WorkKind::transfer)},
          {"idle_ms", profile.total_ms - profile.busy()},
          {"to_host_beside_ms", profile.to_host_beside_ms},
          {"from_host_beside_ms", profile.from_host_beside_ms},
          {"table", profile.table(1)}};
}

}  // namespace

std::string bench_step(const Setup& given, const BenchOptions& options) {
  Setup setup = given;
  if (options.steps > 0) setup.batch.train_iters = options.steps;
  if (setup.batch.train_iters == 0) setup.batch.train_iters = 10;
  require_user(options.warmup >= 0 && options.warmup < setup.batch.train_iters,
               "--warmup {} leaves none of {} steps to be timed", options.warmup, setup.batch.train_iters);
  setup.config.dataset.kind = DatasetKind::mock;
  setup.config.dataset.dataloader_type = DataloaderType::single;
  setup.config.train.eval_iters = 0;
  setup.batch.rampup = {};
  if (setup.schedule.decay_samples == 0)
    setup.schedule.decay_samples = setup.batch.train_iters * setup.batch.global_batch;

  const std::int64_t timed = setup.batch.train_iters;
  if (options.profile) setup.batch.train_iters += Profiler::steps;

  StopRequest stop;
  Log quiet({.console = -1});
  Backend backend = make_backend(setup.config.dist, {.deterministic = setup.config.train.deterministic,
                                                     .tf32 = setup.config.mixed_precision.tf32,
                                                     .kernel_choices = options.kernel_choices});
  ProfilingOps* profiled = nullptr;
  if (options.profile) {
    auto ops = std::make_unique<ProfilingOps>(std::move(backend.ops));
    profiled = ops.get();
    backend.ops = std::move(ops);
  }
  Trainer trainer(setup, backend, make_data_source(setup), quiet);
  if (options.tell) {
    for (const std::string& warning : setup.warnings) options.tell(warning + "\n");
    options.tell(backend.ops->remarks());
  }
  const Recorder& record = add_sink<Recorder>(trainer);
  const Profiler* profiler = profiled ? &add_sink<Profiler>(trainer, *profiled, timed + 1) : nullptr;
  trainer.run(stop);
  require_user(trainer.steps() == setup.batch.train_iters, "stopped after {} steps", trainer.steps());

  const std::vector<double> times(record.times.begin() + options.warmup, record.times.begin() + timed);
  const double step_ms = median(times);
  const auto tokens = static_cast<double>(setup.batch.global_batch * setup.batch.seq_length);
  const double tokens_per_s = tokens / step_ms * 1e3;
  const double tflops = tokens_per_s * model_flops_per_token(setup.model, setup.batch.seq_length) / 1e12;
  const double mfu = backend.peak_flops > 0 ? tflops * 1e12 / backend.peak_flops : 0;
  if (!options.json)
    return fmt::format(
               "{}: {}\nstep {:.2f} ms (best {:.2f}), {:.1f} tokens/s, {:.4f} TFLOP/s{}, planned {}, peak resident "
               "{}\n",
               setup.config.run.name, backend.name, step_ms, *std::min_element(times.begin(), times.end()),
               tokens_per_s, tflops, mfu > 0 ? fmt::format(" (MFU {:.1f} %)", 100 * mfu) : "",
               format_bytes(trainer.step().memory().total()), format_bytes(peak_resident_bytes())) +
           (profiler ? "\n" + profiler->profile.table(1) : "");
  const nlohmann::json json{{"device", backend.name},
                            {"step_ms", step_ms},
                            {"step_ms_all", record.times},
                            {"tokens_per_s", tokens_per_s},
                            {"tflops", tflops},
                            {"mfu", mfu > 0 ? nlohmann::json(mfu) : nlohmann::json()},
                            {"profile", profiler ? profile_json(profiler->profile) : nlohmann::json()},
                            {"planned_bytes", trainer.step().memory().total()},
                            {"peak_rss_bytes", peak_resident_bytes()},
                            {"parameters", trainer.step().count_parameters()},
                            {"losses", record.losses}};
  return json.dump() + "\n";
}

}  // namespace tera
