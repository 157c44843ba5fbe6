#pragma once
// The training loop: fetch a batch, run the step, update, log, evaluate, save. Nothing else owns time.

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "tera/base/log.h"
#include "tera/data/batching/prefetch.h"
#include "tera/optim/lr_schedule.h"
#include "tera/train/data_source.h"
#include "tera/train/launch.h"
#include "tera/train/sinks/metrics.h"
#include "tera/train/training_step.h"

namespace tera {

class CheckpointSaver;
class StopRequest;

// How far a run is.
struct Progress {
  std::int64_t steps = 0;
  std::int64_t consumed = 0;  // samples
  std::int64_t skipped = 0;   // part of consumed: samples of skipped steps
  std::int64_t tokens = 0;    // tokens of all samples, which need not have been of one length
  bool operator==(const Progress&) const = default;
};

// The dynamic context-parallel assignment of a step, for the log.
struct DynamicCpReport {
  static constexpr std::size_t max_degrees = 32;
  std::array<std::int32_t, 2 * max_degrees>
      degrees{};  // pairs: a degree, and how many microbatches of all replicas have it
  std::size_t used = 0;
  double padding = 0;

  static DynamicCpReport of(const DynamicCpScheduler& scheduler);
};

class Trainer {
 public:
  // One rank of the world; without a world, the only rank. All train; sinks and log are usually rank 0's.
  // `start`: the progress of the earlier run whose checkpoint the caller will load into step().
  Trainer(const Setup& setup, Backend& backend, DataSource data, Log& log, Comm* world = nullptr,
          const Progress& start = {});

  void add_sink(std::unique_ptr<MetricsSink> sink) { sinks_.push_back(std::move(sink)); }
  // Whether a step is reported only when the next one has been enqueued; by default on an asynchronous device.
  void report_late(bool late) { report_late_ = late; }
  // saver: saves when a save is due and at the end; it outlives the trainer's runs.
  void save_with(CheckpointSaver& saver) { saver_ = &saver; }

  // Trains until train_iters, the time limit, or a request to stop, and ends after a complete step. Where both are due,
  // a checkpoint is saved before the evaluation; a request to stop ends an evaluation after a batch. When any rank
  // wants to stop, all ranks stop after the same step.
  void run(StopRequest& stop);

  TrainingStep& step() { return step_; }
  std::int64_t steps() const { return done_; }

 private:
  // A step that was enqueued and not reported yet.
  struct Pending {
    std::int64_t step = 0, samples = 0;
    std::int64_t tokens = 0;  // so far
    TrainingStep::Reading reading;
    LearningRates rates;
    BatchCounts counts;  // targets of the global batch
    DynamicCpReport assigned;
    double data_ms = 0, enqueue_ms = 0;  // host time
  };

  void open_batches();
  std::int64_t load_batch();
  void start_step(const StopRequest& stop);
  bool out_of_time() const;
  LearningRates learning_rates() const;
  void report(const Pending& pending);
  void add_loss(const Pending& pending, const StepReading& reading);
  void add_speed(const Pending& pending);
  void add_batch(const Pending& pending);
  void note_scaling(const Pending& pending, const StepReading& reading);
  void report_pending();
  struct LossSum {
    double loss = 0;
    std::int64_t targets = 0;
    bool complete = true;  // no rank asked to stop meanwhile
    double mean() const { return loss / static_cast<double>(std::max<std::int64_t>(targets, 1)); }
  };
  void evaluate(const StopRequest& stop);
  LossSum evaluate(const ValidationSet& set, const StopRequest& stop);
  void save();
  void report_nothing_left();
  bool evaluation_is_due() const;
  void check_finite(const StepMetrics& metrics) const;

  Setup setup_;
  DataSource data_;
  Log& log_;
  TrainingStep step_;
  std::unique_ptr<CyclicSampler> sampler_;  // sampler of the training data, where it is cyclic
  std::unique_ptr<Prefetch> train_batches_, valid_batches_;
  LrSchedule schedule_;
  std::vector<SetLoss> set_losses_;  // one for each validation set, where there are several
  std::vector<std::unique_ptr<MetricsSink>> sinks_;

  CheckpointSaver* saver_ = nullptr;
  std::int64_t done_ = 0;      // steps
  std::int64_t consumed_ = 0;  // samples
  std::int64_t tokens_ = 0;    // tokens of all samples
  std::int64_t skipped_ = 0;   // samples of skipped steps, as far as steps are reported
  DynamicCpReport assigned_;   // assignment of the current batch
  BatchCounts counts_;         // targets of the current batch
  MetricList metrics_;         // metrics of the step that is reported

  // Loss scale: state of the step that was reported last, then counts over this run.
  bool last_skipped_ = false;
  double last_scale_ = 0;
  std::int64_t overflows_ = 0;
  std::int64_t overflows_at_floor_ = 0;  // in a row, at the smallest scale
  bool reported_floor_ = false;

  // On a device that runs behind the host, a step is reported when the next one is enqueued.
  bool report_late_ = false;
  std::optional<Pending> pending_;
  std::chrono::steady_clock::time_point last_report_;
  double peak_flops_ = 0;
  std::chrono::steady_clock::time_point begin_;
  bool stopping_ = false;  // a rank voted to stop
};

// The learning rate as the config has it, counted in samples.
LrSchedule make_schedule(const Setup& setup);

// Whether the learning rate decays over the length of the run, because no key gives the decay's length.
bool decays_over_the_run(const SchedulerConfig& scheduler);
// The key and value that make it decay over so many samples: "scheduler.lr_decay_iters=20".
std::string key_for_decay(const Setup& setup, std::int64_t samples);

// `tera train`: everything a run does and writes under its folder, on all ranks of the launch.
void train(const Setup& setup, const Launch& launch = {});

}  // namespace tera
