#include "tera/bench/bench.h"

#include <fmt/core.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tera/base/error.h"
#include "tera/base/log.h"
#include "tera/base/signals.h"
#include "tera/bench/profiling_ops.h"
#include "tera/models/flops.h"
#include "tera/train/trainer.h"

namespace tera {
namespace {

// A sink that keeps step times and losses.
struct Recorder final : MetricsSink {
  void step(const StepMetrics& metrics) override {
    times.push_back(metrics.number("step_ms"));
    losses.push_back(metrics.number("loss"));
  }
  void eval(const EvalMetrics&) override {}
  std::vector<double> times, losses;
};

// Profiles one step. On a GPU a step is reported when the next one has been enqueued, so the profiled step runs between
// two that are not timed.
struct Profiler final : MetricsSink {
  Profiler(ProfilingOps& ops, Comm& world, std::int64_t first)
      : ops_(ops), ranks_(dynamic_cast<CallTimer*>(&world)), first_(first) {}
  void step(const StepMetrics& metrics) override {
    if (metrics.step == first_) ops_.start(ranks_);
    if (metrics.step == first_ + 1) profile = ops_.finish();
  }
  void eval(const EvalMetrics&) override {}

  static constexpr std::int64_t steps = 4;  // the profiled step and those around it
  Profile profile;

 private:
  ProfilingOps& ops_;
  CallTimer* ranks_;
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
  nlohmann::json beside = nlohmann::json::object();
  for (const auto& [name, overlap] : profile.overlaps())
    beside[name] = {{"calls", overlap.calls}, {"ms", overlap.ms}, {"while_working_ms", overlap.covered}};
  return {{"step_ms", profile.total_ms},
          {"gemm_ms", profile.of(OpKind::gemm)},
          {"attention_ms", profile.of(OpKind::attention)},
          {"memory_bound_ms", profile.of(OpKind::memory_bound)},
          {"optimizer_ms", profile.of(OpKind::optimizer)},
          {"transfer_ms", profile.of(OpKind::transfer)},
          {"idle_ms", profile.total_ms - profile.busy()},
          {"beside", beside},
          {"table", profile.table()}};
}

// Checked before anything is measured.
void check_folder_of(std::string_view option, const std::filesystem::path& file) {
  const std::filesystem::path folder = std::filesystem::absolute(file).parent_path();
  require_user(std::filesystem::is_directory(folder), "{} {}: there is no folder {}", option, file.string(),
               folder.string());
}

// The setup that is measured: the requested number of steps, on mock data, which costs nothing.
Setup bench_setup(Setup setup, const BenchOptions& options) {
  if (options.steps > 0) setup.batch.train_iters = options.steps;
  if (setup.batch.train_iters == 0) setup.batch.train_iters = 10;
  require_user(options.warmup >= 0 && options.warmup < setup.batch.train_iters,
               "--warmup {} leaves none of {} steps to be timed", options.warmup, setup.batch.train_iters);
  require_user(options.trace.empty() || options.profile, "--trace writes what --profile finds: give both");
  if (!options.trace.empty()) check_folder_of("--trace", options.trace);
  setup.config.dataset.kind = DatasetKind::mock;
  setup.config.dataset.dataloader_type = DataloaderType::single;
  setup.config.train.eval_iters = 0;
  setup.batch.rampup = {};
  if (setup.schedule.decay_samples == 0)
    setup.schedule.decay_samples = setup.batch.train_iters * setup.batch.global_batch;
  return setup;
}

// One rank of the measurement. All ranks profile, so that all have the same overhead.
class BenchOfRank {
 public:
  BenchOfRank(const Setup& setup, const BenchOptions& options, const Launch& launch, RankHandle& rank_handle)
      : setup_(setup), options_(options), timed_(setup.batch.train_iters), backend_(make(launch, rank_handle.rank())) {
    if (options.profile) setup_.batch.train_iters += Profiler::steps;
    // NCCL communicates on the GPU's own queue; ranks that are threads copy tensors on the profiled queue.
    Ops& queue = profiled_ != nullptr && launch.as_processes() ? profiled_->inner() : *backend_.ops;
    world_ = rank_handle.join(queue);
  }

  // Returns the text to print on rank 0.
  std::string run(StopRequest& stop) {
    std::string text;
    report_faults(*world_, [&] { text = measure(stop); });
    return text;
  }

 private:
  Backend make(const Launch& launch, int rank) {
    BackendOptions options = backend_options(setup_, launch.local_rank);
    options.kernel_choices = options_.kernel_choices;
    if (rank > 0 && !options_.kernel_choices.empty()) options.kernel_choices += fmt::format(".rank{}", rank);
    Backend backend = make_backend(setup_.config.dist, options);
    if (!options_.profile) return backend;
    auto ops = std::make_unique<ProfilingOps>(std::move(backend.ops));
    profiled_ = ops.get();
    backend.ops = std::move(ops);
    return backend;
  }

  std::string measure(StopRequest& stop) {
    Log silent({.console = -1});
    Trainer trainer(setup_, backend_, make_data_source(setup_), silent, world_.get());
    const bool first = world_->rank() == 0;
    if (options_.report && first) {
      for (const std::string& warning : setup_.warnings) options_.report(warning + "\n");
      options_.report(backend_.ops->remarks());
    }
    const Recorder& record = add_sink<Recorder>(trainer);
    const Profiler* profiler =
        profiled_ != nullptr ? &add_sink<Profiler>(trainer, *profiled_, *world_, timed_ + 1) : nullptr;
    trainer.run(stop);
    require_user(trainer.steps() == setup_.batch.train_iters, "stopped after {} steps", trainer.steps());
    if (!first) return {};
    const Profile* const profile = profiler != nullptr ? &profiler->profile : nullptr;
    if (!options_.trace.empty()) write_trace(*profile, options_.trace);
    return options_.json ? json(trainer, record, profile) : text(trainer, record, profile);
  }

  struct Speed {
    std::vector<double> times;                                  // times of steps after warm-up, in ms
    double step_ms = 0, tokens_per_s = 0, tflops = 0, mfu = 0;  // tflops: of one rank; mfu 0: not known
  };
  Speed speed(const Recorder& record) const {
    Speed speed;
    speed.times.assign(record.times.begin() + options_.warmup, record.times.begin() + timed_);
    speed.step_ms = median(speed.times);
    speed.tokens_per_s = static_cast<double>(setup_.batch.global_batch * setup_.batch.seq_length) / speed.step_ms * 1e3;
    speed.tflops =
        speed.tokens_per_s * model_flops_per_token(setup_.model, setup_.batch.seq_length) / 1e12 / world_->size();
    if (backend_.peak_flops > 0) speed.mfu = speed.tflops * 1e12 / backend_.peak_flops;
    return speed;
  }

  std::string text(Trainer& trainer, const Recorder& record, const Profile* profile) const {
    const Speed found = speed(record);
    const bool several = world_->size() > 1;
    return fmt::format(
               "{}: {}{}\nstep {:.2f} ms (best {:.2f}), {:.1f} tokens/s, {:.4f} TFLOP/s{}{}, planned {}, peak resident "
               "{}\n",
               setup_.config.run.name, several ? fmt::format("{} ranks, each: ", world_->size()) : "", backend_.name,
               found.step_ms, *std::min_element(found.times.begin(), found.times.end()), found.tokens_per_s,
               found.tflops, several ? " a rank" : "",
               found.mfu > 0 ? fmt::format(" (MFU {:.1f} %)", 100 * found.mfu) : "",
               format_bytes(trainer.step().memory().total()), format_bytes(peak_resident_bytes())) +
           (profile != nullptr ? "\n" + profile->table() : "");
  }

  std::string json(Trainer& trainer, const Recorder& record, const Profile* profile) const {
    const Speed found = speed(record);
    const nlohmann::json json{{"device", backend_.name},
                              {"ranks", world_->size()},
                              {"step_ms", found.step_ms},
                              {"step_ms_all", record.times},
                              {"tokens_per_s", found.tokens_per_s},
                              {"tflops", found.tflops},
                              {"mfu", found.mfu > 0 ? nlohmann::json(found.mfu) : nlohmann::json()},
                              {"profile", profile != nullptr ? profile_json(*profile) : nlohmann::json()},
                              {"planned_bytes", trainer.step().memory().total()},
                              {"peak_rss_bytes", peak_resident_bytes()},
                              {"parameters", trainer.step().count_parameters()},
                              {"losses", record.losses}};
    return json.dump() + "\n";
  }

  Setup setup_;
  const BenchOptions& options_;
  std::int64_t timed_;  // timed steps, warm-up included
  ProfilingOps* profiled_ = nullptr;
  Backend backend_;
  std::unique_ptr<Comm> world_;
};

}  // namespace

std::string bench_step(const Setup& given, const BenchOptions& options, const Launch& launch) {
  StopRequest stop;
  const Setup setup = prepare_ranks(launch, [&] { return bench_setup(given, options); });
  std::string output;
  run_ranks(launch, setup.parallel.timeout_seconds, [&](RankHandle& rank_handle) {
    std::string text = BenchOfRank(setup, options, launch, rank_handle).run(stop);
    if (rank_handle.rank() == 0) output = std::move(text);
  });
  return output;
}

}  // namespace tera
