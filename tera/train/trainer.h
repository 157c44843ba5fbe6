#pragma once
// The training loop: fetch a batch, run the step, update, log, evaluate, save. Nothing else owns time.

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "tera/base/log.h"
#include "tera/data/prefetch.h"
#include "tera/optim/lr_schedule.h"
#include "tera/train/data_source.h"
#include "tera/train/expert_report.h"
#include "tera/train/launch.h"
#include "tera/train/metrics.h"
#include "tera/train/training_step.h"

namespace tera {

class CheckpointSaver;
class StopRequest;

// How far a run is.
struct Progress {
  std::int64_t steps = 0;
  std::int64_t consumed = 0;  // samples
  std::int64_t skipped = 0;   // of these, of steps that were skipped
  std::int64_t tokens = 0;    // of all samples, which need not have been of one length
  bool operator==(const Progress&) const = default;
};

// How the documents of a step were dealt out, for the log.
struct DealTold {
  static constexpr std::size_t most_degrees = 32;
  std::array<std::int32_t, 2 * most_degrees> degrees{};  // a degree, and how many microbatches of all replicas have it
  std::size_t used = 0;
  double padding = 0;

  static DealTold of(const DocumentDeal& deal);
};

class Trainer {
 public:
  // One of the ranks of the world; without a world, the only one. All train; sinks and log are usually rank 0's.
  // `start`: where an earlier run ended whose state step() will be given.
  Trainer(const Setup& setup, Backend& backend, DataSource data, Log& log, Comm* world = nullptr,
          const Progress& start = {});

  void add_sink(std::unique_ptr<MetricsSink> sink) { sinks_.push_back(std::move(sink)); }
  // Whether a step is reported only when the next one has been enqueued; the default suits the backend.
  void report_late(bool late) { report_late_ = late; }
  // Saves when it is due and at the end; outlives the trainer's runs.
  void save_with(CheckpointSaver& saver) { saver_ = &saver; }

  // Trains until train_iters, the time limit, or a request to stop; each after a whole step. Where both are due, it is
  // saved before it is evaluated; a request to stop ends an evaluation after a batch. When any rank wants to stop, all
  // do, after the same step.
  void run(StopRequest& stop);

  TrainingStep& step() { return step_; }
  std::int64_t steps() const { return done_; }

 private:
  // A step that was enqueued and not reported yet.
  struct Pending {
    StepMetrics metrics;  // loss, norm, learning rate and times are filled in when they are known
    TrainingStep::Reading reading;
    LearningRates rates;
    std::int64_t counted = 0;  // targets
    TargetsAhead counted_ahead{};
    DealTold dealt;
    std::int64_t samples = 0;
    double enqueue_ms = 0;  // of the host
  };

  void open_batches();
  std::int64_t load_batch();
  void start_step(const StopRequest& stop);
  bool out_of_time() const;
  LearningRates learning_rates() const;
  void report(Pending pending);
  void tell_losses_ahead(const TrainingStep::Result& result, const TargetsAhead& counted, StepMetrics& metrics);
  void note_scaling(const TrainingStep::Result& result, std::int64_t samples, StepMetrics& metrics);
  void report_pending();
  struct LossSum {
    double loss = 0;
    std::int64_t targets = 0;
    bool whole = true;  // nobody asked to stop meanwhile
    double mean() const { return loss / static_cast<double>(std::max<std::int64_t>(targets, 1)); }
  };
  void evaluate(const StopRequest& stop);
  LossSum evaluate(const ValidationSet& set, const StopRequest& stop);
  void save();
  void tell_nothing_left();
  bool evaluation_is_due() const;
  void check_finite(const StepMetrics& metrics) const;

  Setup setup_;
  DataSource data_;
  Log& log_;
  TrainingStep step_;
  std::unique_ptr<CyclicSampler> sampler_;  // of the training data, where it is cyclic
  std::unique_ptr<Prefetch> train_batches_, valid_batches_;
  LrSchedule schedule_;
  std::optional<ExpertReport> experts_;
  std::vector<SetLoss> set_losses_;  // of several validation sets
  std::vector<std::unique_ptr<MetricsSink>> sinks_;

  CheckpointSaver* saver_ = nullptr;
  std::int64_t done_ = 0;      // steps
  std::int64_t consumed_ = 0;  // samples
  std::int64_t tokens_ = 0;    // of all samples
  std::int64_t skipped_ = 0;   // samples of steps that were skipped, as far as these are reported
  DealTold dealt_;             // of the batch at hand
  std::int64_t counted_ = 0;   // targets of the batch at hand that count
  TargetsAhead counted_ahead_{};
  std::array<double, most_mtp_layers> losses_ahead_{};  // of the step that is reported

  // With a loss scale; of the step that was reported last, and of all of this run.
  bool last_skipped_ = false;
  double last_scale_ = 0;
  std::int64_t overflows_ = 0;
  std::int64_t overflows_at_floor_ = 0;  // in a row, at the smallest scale
  bool told_of_floor_ = false;

  // On a device that runs behind the host, a step is reported when the next one is enqueued.
  bool report_late_ = false;
  std::optional<Pending> pending_;
  std::chrono::steady_clock::time_point last_report_;
  double peak_flops_ = 0;
  std::chrono::steady_clock::time_point begin_;
  bool stopping_ = false;  // some rank asked for it
};

// The learning rate as the config has it, counted in samples.
LrSchedule make_schedule(const Setup& setup);

// Whether the learning rate falls for as long as the run is, since no key says for how long.
bool decays_over_the_run(const SchedulerConfig& scheduler);
// The key and the value that let it fall over so many samples: "scheduler.lr_decay_iters=20".
std::string key_for_decay(const Setup& setup, std::int64_t samples);

// `tera train`: everything a run does and writes under its folder, on all ranks of the launch.
void train(const Setup& setup, const Launch& launch = {});

}  // namespace tera
