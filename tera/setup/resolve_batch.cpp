#include "tera/setup/resolve_batch.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "tera/base/nearest.h"

namespace tera {
namespace {

constexpr std::int64_t max_microbatches = 65536;  // limit for one step; the plan rehearses each
constexpr std::int64_t max_step_sizes = 1024;     // each has a pipeline schedule of its own
constexpr std::string_view rampup_key = "train.rampup_batch_size";

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

std::string describe_micro_times_dp(std::int64_t micro_batch, int dp) {
  return dp == 1 ? "micro_batch_size" : fmt::format("micro_batch_size={} times the {} replicas", micro_batch, dp);
}

RampUp resolve_rampup(const TrainConfig& train, const BatchShape& batch, int dp, Report& report) {
  const auto& list = train.rampup_batch_size;
  if (list.empty()) return {};
  const std::int64_t micro_times_dp = train.micro_batch_size * dp;
  constexpr std::int64_t max_value = std::int64_t{1} << 53;
  if (list.size() != 3 || std::ranges::any_of(list, [](std::int64_t v) { return v <= 0 || v > max_value; })) {
    report.broken(rampup_key, "must be three numbers above 0: [first batch size, increment, samples]");
    return {};
  }
  const RampUp rampup{.start = list[0], .increment = list[1], .samples = list[2]};
  const std::int64_t growth = batch.global_batch - rampup.start;
  if (train.train_samples == 0) report.broken(rampup_key, "needs train.train_samples, since steps differ in size");
  if (growth <= 0 || growth % rampup.increment != 0) {
    report.broken(rampup_key, "global_batch_size, which is {}, must be {} and a positive number of increments of {}",
                  batch.global_batch, rampup.start, rampup.increment);
  } else if (rampup.start % micro_times_dp != 0 || rampup.increment % micro_times_dp != 0) {
    report.broken(rampup_key, "first size and increment must be multiples of {}, which is {}",
                  describe_micro_times_dp(batch.micro_batch, dp), micro_times_dp);
  } else if (growth / rampup.increment > max_step_sizes) {
    report.broken(rampup_key, "gives {} sizes of a step; at most {} are planned", growth / rampup.increment + 1,
                  max_step_sizes + 1);
  } else {
    return rampup;
  }
  return {};
}

// Number of steps of equal size after `consumed` samples, up to `high`: a binary search, as the size never falls.
std::int64_t equal_steps(const BatchShape& batch, std::int64_t consumed, std::int64_t high) {
  const std::int64_t size = batch.global_batch_at(consumed);
  std::int64_t low = 1;
  while (low < high) {
    const std::int64_t middle = low + (high - low + 1) / 2;
    if (batch.global_batch_at(consumed + (middle - 1) * size) == size)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

// Number of full steps up to `samples` samples, those before a resume included.
std::int64_t count_steps(const BatchShape& batch, std::int64_t samples) {
  std::int64_t steps = batch.resume.steps, consumed = batch.resume.samples;
  for (;;) {
    const std::int64_t size = batch.global_batch_at(consumed), remaining = (samples - consumed) / size;
    if (remaining <= 0) return steps;
    const std::int64_t equal = equal_steps(batch, consumed, remaining);
    steps += equal;
    consumed += equal * size;
  }
}

// A length of the learning-rate schedule, given in steps or in sequences.
struct Length {
  std::string_view iters_key, samples_key;
  std::int64_t iters, samples;
  std::string_view key() const { return samples > 0 ? samples_key : iters_key; }
};

std::int64_t in_samples(const Length& length, const BatchShape& batch, Report& report) {
  if (length.samples > 0 && length.iters > 0)
    report.broken(length.samples_key, "give either this or {}, which is {}", length.iters_key, length.iters);
  if (length.iters > 0 && batch.rampup.start > 0)
    report.broken(length.iters_key, "with {} steps differ in size; give {}", rampup_key, length.samples_key);
  // The schedule counts sequences in 64 bits.
  if (static_cast<double>(length.iters) * static_cast<double>(batch.global_batch) > 0x1p62) {
    report.broken(length.iters_key, "times global_batch_size, which is {}, gives more sequences than can be counted",
                  batch.global_batch);
    return 0;
  }
  return length.samples > 0 ? length.samples : length.iters * batch.global_batch;
}

std::string_view horizon_name(const Length& decay) {
  if (decay.iters > 0) return "lr_decay_iters";
  return decay.samples > 0 ? "lr_decay_samples" : "the length of the run";
}

// Samples of the run; 0 if they are too many to count, which is reported elsewhere.
std::int64_t samples_of_run(const TrainConfig& train, const BatchShape& batch) {
  if (train.train_samples > 0) return train.train_samples;
  const double total = static_cast<double>(batch.resume.samples) +
                       static_cast<double>(batch.train_iters) * static_cast<double>(batch.global_batch);
  return total <= 0x1p62 ? batch.samples_at_end() : 0;
}

void check_rates(const RunConfig& config, Purpose purpose, Report& report) {
  const OptimizerConfig& optimizer = config.optimizer;
  if (optimizer.lr == 0) {
    if (purpose == Purpose::train) report.missing("optimizer.lr", "it is the peak learning rate, such as 3e-4");
    return;
  }
  if (optimizer.min_lr > optimizer.lr) report.broken("optimizer.min_lr", "above lr, which is {}", optimizer.lr);
  if (config.scheduler.lr_warmup_init > optimizer.lr)
    report.broken("scheduler.lr_warmup_init", "above optimizer.lr, which is {}", optimizer.lr);
}

}  // namespace

BatchShape resolve_batch(const TrainConfig& train, int dp, Purpose purpose, const ResumeOffset& resume,
                         Report& report) {
  const std::int64_t micro_times_dp = train.micro_batch_size * dp;  // sequences of one microbatch of all replicas
  BatchShape batch{.micro_batch = train.micro_batch_size,
                   .global_batch = train.global_batch_size == 0 ? micro_times_dp : train.global_batch_size,
                   .num_microbatches = 1,
                   .seq_length = train.seq_length,
                   .train_iters = train.train_iters,
                   .resume = resume,
                   .rampup = {}};
  if (train.train_iters > 0 && train.train_samples > 0)
    report.broken("train.train_samples", "give either this or train_iters, which is {}", train.train_iters);
  if (train.train_iters == 0 && train.train_samples == 0 && purpose == Purpose::train)
    report.missing("train.train_iters", "say how long to train, with it or with train_samples");
  batch.num_microbatches = batch.global_batch / micro_times_dp;
  if (batch.global_batch % micro_times_dp != 0)
    report.broken("train.global_batch_size", "must be a multiple of {}, which is {}; nearest: {}",
                  describe_micro_times_dp(batch.micro_batch, dp), micro_times_dp,
                  nearest_multiples(micro_times_dp, batch.global_batch));
  if (batch.num_microbatches > max_microbatches)
    report.broken("train.global_batch_size",
                  "gives {} microbatches of micro_batch_size={} per step; at most {} are planned",
                  batch.num_microbatches, batch.micro_batch, max_microbatches);
  batch.rampup = resolve_rampup(train, batch, dp, report);
  if (train.train_samples > 0) {
    batch.train_iters = count_steps(batch, train.train_samples);
    if (batch.train_iters == 0)
      report.broken("train.train_samples", "less than one global batch, which is {}", batch.global_batch_at(0));
  }
  check_token_counts(batch, report);
  return batch;
}

ScheduleShape resolve_schedule(const RunConfig& config, const BatchShape& batch, Purpose purpose, Report& report) {
  const SchedulerConfig& scheduler = config.scheduler;
  const Length warmup{"scheduler.lr_warmup_iters", "scheduler.lr_warmup_samples", scheduler.lr_warmup_iters,
                      scheduler.lr_warmup_samples};
  const Length decay{"scheduler.lr_decay_iters", "scheduler.lr_decay_samples", scheduler.lr_decay_iters,
                     scheduler.lr_decay_samples};
  const Length wsd{"scheduler.lr_wsd_decay_iters", "scheduler.lr_wsd_decay_samples", scheduler.lr_wsd_decay_iters,
                   scheduler.lr_wsd_decay_samples};
  check_rates(config, purpose, report);
  ScheduleShape schedule{.warmup_samples = in_samples(warmup, batch, report),
                         .decay_samples = in_samples(decay, batch, report),
                         .wsd_decay_samples = in_samples(wsd, batch, report)};
  if (schedule.decay_samples == 0) schedule.decay_samples = samples_of_run(config.train, batch);
  if (schedule.decay_samples <= 0) return schedule;
  const auto unit_of = [&](const Length& length) { return length.samples > 0 ? 1 : batch.global_batch; };
  if (schedule.warmup_samples >= schedule.decay_samples)
    report.broken(warmup.key(), "must be below {}, which is {}; 0: no warm-up", horizon_name(decay),
                  schedule.decay_samples / unit_of(warmup));
  if (scheduler.lr_decay_style != LrDecayStyle::wsd) return schedule;
  if (schedule.wsd_decay_samples == 0)
    report.missing(batch.rampup.start > 0 ? wsd.samples_key : wsd.iters_key,
                   "lr_decay_style=WSD needs the length of its final decay");
  const std::int64_t after_warmup = schedule.decay_samples - schedule.warmup_samples;
  if (schedule.wsd_decay_samples > after_warmup && after_warmup > 0)
    report.broken(wsd.key(), "longer than what is left of {} after the warm-up, which is {}", horizon_name(decay),
                  after_warmup / unit_of(wsd));
  return schedule;
}

}  // namespace tera
