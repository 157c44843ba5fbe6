#include "tera/config/resolve.h"

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "tera/config/catalog.h"
#include "tera/config/nearest.h"
#include "tera/config/report.h"
#include "tera/config/resolve_data.h"
#include "tera/config/resolve_model.h"
#include "tera/config/resolve_parallel.h"
#include "tera/config/value.h"

namespace tera {
namespace {

constexpr std::int64_t max_microbatches = 65536;  // of one step, each of which is rehearsed

// Every value against its own limits. Returns the sections in which all of them hold: rules between keys are checked
// only there, so that they can count on sane values.
std::set<std::string> check_values(const RunConfig& config, Report& report) {
  std::set<std::string> sane;
  for (const Field& section : RunConfig::fields()) sane.emplace(section.name);
  for_each_value(config, [&](const std::string& key, const Field& field, const void* value) {
    const std::string written = write_value(field, value);
    if (field.required && (written == "0" || written == "null")) {
      report.missing(key, "expected: {}", describe_type(field));
    } else if (const std::string wrong = check_limits(field, value); !wrong.empty()) {
      report.broken(key, "{}", wrong);
      sane.erase(key.substr(0, key.find('.')));
    }
  });
  return sane;
}

// Rows of one forward pass are counted in 32 bits, tokens of the run in 64.
void check_token_counts(const BatchShape& batch, Report& report) {
  const double rows = static_cast<double>(batch.micro_batch) * static_cast<double>(batch.seq_length);
  if (rows > 0x7fffffff)
    report.broken("train.micro_batch_size",
                  "times seq_length, which is {}, gives more than {} tokens in a forward pass", batch.seq_length,
                  0x7fffffff);
  const double total = static_cast<double>(batch.train_iters) * static_cast<double>(batch.global_batch) *
                       static_cast<double>(batch.seq_length);
  if (total > 0x1p62) report.broken("train.train_iters", "gives {:.2g} tokens in all, more than can be counted", total);
}

BatchShape resolve_batch(const TrainConfig& train, int dp, Purpose purpose, Report& report) {
  const std::int64_t together = train.micro_batch_size * dp;  // sequences of all replicas at a time
  BatchShape batch{.micro_batch = train.micro_batch_size,
                   .global_batch = train.global_batch_size == 0 ? together : train.global_batch_size,
                   .num_microbatches = 1,
                   .seq_length = train.seq_length,
                   .train_iters = train.train_iters};
  if (train.train_iters > 0 && train.train_samples > 0)
    report.broken("train.train_samples", "give either this or train_iters, which is {}", train.train_iters);
  if (train.train_iters == 0 && train.train_samples == 0 && purpose == Purpose::train)
    report.missing("train.train_iters", "say how long to train, with it or with train_samples");
  batch.num_microbatches = batch.global_batch / together;
  if (batch.global_batch % together != 0)
    report.broken(
        "train.global_batch_size", "must be a multiple of {}, which is {}; nearest: {}",
        dp == 1 ? "micro_batch_size" : fmt::format("micro_batch_size={} times the {} replicas", batch.micro_batch, dp),
        together, nearest_multiples(together, batch.global_batch));
  if (batch.num_microbatches > max_microbatches)
    report.broken("train.global_batch_size",
                  "gives {} microbatches of micro_batch_size={} per step; at most {} are planned",
                  batch.num_microbatches, batch.micro_batch, max_microbatches);
  if (train.train_samples > 0) {
    batch.train_iters = train.train_samples / batch.global_batch;
    if (batch.train_iters == 0)
      report.broken("train.train_samples", "less than one global batch, which is {}", batch.global_batch);
  }
  check_token_counts(batch, report);
  return batch;
}

// The schedule counts sequences, in 64 bits.
void check_sequence_counts(const SchedulerConfig& scheduler, std::int64_t global_batch, Report& report) {
  const std::array<std::pair<std::string_view, std::int64_t>, 3> lengths{
      {{"scheduler.lr_warmup_iters", scheduler.lr_warmup_iters},
       {"scheduler.lr_decay_iters", scheduler.lr_decay_iters},
       {"scheduler.lr_wsd_decay_iters", scheduler.lr_wsd_decay_iters}}};
  for (const auto& [key, iters] : lengths)
    if (static_cast<double>(iters) * static_cast<double>(global_batch) > 0x1p62)
      report.broken(key, "times global_batch_size, which is {}, gives more sequences than can be counted",
                    global_batch);
}

ScheduleShape resolve_schedule(const RunConfig& config, const BatchShape& batch, Purpose purpose, Report& report) {
  const SchedulerConfig& scheduler = config.scheduler;
  const OptimizerConfig& optimizer = config.optimizer;
  ScheduleShape schedule{.warmup_iters = scheduler.lr_warmup_iters,
                         .decay_iters = scheduler.lr_decay_iters == 0 ? batch.train_iters : scheduler.lr_decay_iters,
                         .wsd_decay_iters = scheduler.lr_wsd_decay_iters};
  if (optimizer.lr == 0) {
    if (purpose == Purpose::train) report.missing("optimizer.lr", "it is the peak learning rate, such as 3e-4");
  } else {
    if (optimizer.min_lr > optimizer.lr) report.broken("optimizer.min_lr", "above lr, which is {}", optimizer.lr);
    if (scheduler.lr_warmup_init > optimizer.lr)
      report.broken("scheduler.lr_warmup_init", "above optimizer.lr, which is {}", optimizer.lr);
  }
  check_sequence_counts(scheduler, batch.global_batch, report);
  if (schedule.decay_iters <= 0) return schedule;
  const char* const horizon = scheduler.lr_decay_iters == 0 ? "the length of the run" : "lr_decay_iters";
  if (schedule.warmup_iters >= schedule.decay_iters)
    report.broken("scheduler.lr_warmup_iters", "must be below {}, which is {}; 0: no warm-up", horizon,
                  schedule.decay_iters);
  if (scheduler.lr_decay_style != LrDecayStyle::wsd) return schedule;
  if (schedule.wsd_decay_iters == 0)
    report.missing("scheduler.lr_wsd_decay_iters", "lr_decay_style=WSD needs the length of its final decay");
  const std::int64_t after_warmup = schedule.decay_iters - schedule.warmup_iters;
  if (schedule.wsd_decay_iters > after_warmup && after_warmup > 0)
    report.broken("scheduler.lr_wsd_decay_iters", "longer than what is left of {} after the warm-up, which is {}",
                  horizon, schedule.decay_iters - schedule.warmup_iters);
  return schedule;
}

std::string resolve_run_dir(const RunSection& run, Report& report) {
  if (!run.dir.empty()) return run.dir;
  const std::string name = run.name.empty() ? "run" : run.name;
  if (name.find('/') != std::string::npos || name == "." || name == "..")
    report.broken("run.name", "must be a plain name, since the run writes to runs/<name>; or give run.dir");
  return "runs/" + name;
}

}  // namespace

Setup resolve(const RunConfig& config, Purpose purpose, const Origins* origins, int world) {
  Report report(config, origins);
  const std::set<std::string> sane = check_values(config, report);
  const bool train_sane = sane.contains("train");
  Setup setup;
  setup.config = config;
  if (sane.contains("dist") && sane.contains("ddp")) setup.parallel = resolve_parallel(config, world, report);
  if (train_sane && sane.contains("model")) setup.model = resolve_model(config, setup.parallel.mesh.tp, report);
  if (train_sane) setup.batch = resolve_batch(config.train, setup.parallel.dp, purpose, report);
  if (train_sane && sane.contains("model")) check_split(setup.parallel, setup.model, setup.batch, report);
  if (train_sane && sane.contains("optimizer") && sane.contains("scheduler"))
    setup.schedule = resolve_schedule(config, setup.batch, purpose, report);
  setup.split = resolve_split(config.dataset.split, report);
  setup.indexed = resolve_indexed(config, purpose, report);
  check_data_path(config.dataset, purpose, report);
  setup.run_dir = resolve_run_dir(config.run, report);
  report.throw_if_any();
  return setup;
}

int smallest_world(const RunConfig& config) {
  const auto clamped = [](std::int64_t size) { return std::clamp(size, std::int64_t{1}, std::int64_t{most_ranks}); };
  return static_cast<int>(
      clamped(clamped(config.dist.tensor_model_parallel_size) * clamped(config.dist.pipeline_model_parallel_size)));
}

}  // namespace tera
