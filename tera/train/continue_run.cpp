#include "tera/train/continue_run.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>

#include "tera/base/error.h"
#include "tera/checkpoint/rank_file.h"
#include "tera/setup/describe.h"
#include "tera/setup/resolve.h"
#include "tera/train/config_changes.h"
#include "tera/train/stored_run.h"

namespace tera {
namespace {

constexpr std::string_view batch_key = "train.global_batch_size";

// The number of ranks that saved the checkpoint: each wrote a file.
int ranks_that_saved(const Checkpoint& checkpoint) {
  int ranks = 0;
  while (checkpoint.has_file(RankFile::name(ranks))) ++ranks;
  return std::max(ranks, 1);
}

// The setup of the run that saved the checkpoint; none if this program cannot resolve its config.
std::optional<Setup> stored_setup(const Checkpoint& checkpoint, const ResumeOffset& resume, Families families) {
  try {
    Setup stored = resolve(stored_config(checkpoint, families).config, Purpose::inspect, nullptr,
                           ranks_that_saved(checkpoint), resume);
    stored.config.tokenizer =
        written_config(checkpoint, families).config.tokenizer;  // as it was given, not the copy in the checkpoint
    return stored;
  } catch (const UserError&) {
    return std::nullopt;
  }
}

Setup resolve_again(const Setup& setup, const RunConfig& config, const ResumeOffset& resume) {
  Setup continued = resolve(config, Purpose::train, nullptr, setup.parallel.mesh.world, resume);
  continued.warnings = setup.warnings;  // resolve() does not make all of them
  return continued;
}

// A hint with the micro-batch size with which these replicas can divide the batch. Empty if that is not the reason.
std::string micro_batch_for(std::int64_t batch, const Setup& setup) {
  const std::int64_t micro = setup.batch.micro_batch, replicas = setup.parallel.dp;
  if (batch % replicas != 0 || batch % (micro * replicas) == 0) return {};
  return fmt::format("; train.micro_batch_size={} lets it stay", std::gcd(batch / replicas, micro));
}

// The setup with the checkpoint's batch size, where the config leaves it open. None: it does not, or the layout does
// not allow that size.
std::optional<Setup> with_stored_batch(const Setup& setup, const Setup& stored, const ResumeOffset& resume,
                                       StartPoint& start) {
  const std::int64_t kept = stored.batch.global_batch, derived = setup.batch.global_batch;
  if (setup.config.train.global_batch_size != 0 || kept == derived) return std::nullopt;
  const std::string folder = start.checkpoint->folder().string();
  RunConfig config = setup.config;
  config.train.global_batch_size = kept;
  try {
    Setup continued = resolve_again(setup, config, resume);
    start.remarks.push_back(
        fmt::format("{} is not given: it stays {}, as when {} was saved; micro_batch_size x replicas would be {}",
                    batch_key, kept, folder, derived));
    return continued;
  } catch (const UserError& error) {
    start.warnings.push_back(
        fmt::format("{} is not given, and cannot stay {}, as when {} was saved: it is {} now ({}){}", batch_key, kept,
                    folder, derived, error.what(), micro_batch_for(kept, setup)));
    return std::nullopt;
  }
}

// A config in a canonical form, for comparison: lengths of the learning-rate schedule in samples, whatever unit they
// were given in, and 0 where the rate does not depend on them.
RunConfig with_what_follows(const Setup& setup) {
  RunConfig config = setup.config;
  config.train.global_batch_size = setup.batch.global_batch;
  SchedulerConfig& scheduler = config.scheduler;
  const LrDecayStyle style = scheduler.lr_decay_style;
  scheduler.lr_warmup_iters = scheduler.lr_decay_iters = scheduler.lr_wsd_decay_iters = 0;
  scheduler.lr_warmup_samples = setup.schedule.warmup_samples;
  scheduler.lr_decay_samples = style == LrDecayStyle::constant ? 0 : setup.schedule.decay_samples;
  scheduler.lr_wsd_decay_samples = style == LrDecayStyle::wsd ? setup.schedule.wsd_decay_samples : 0;
  return config;
}

std::string changes_of(const Checkpoint& checkpoint, const std::optional<Setup>& stored, const Setup& setup) {
  if (stored) return changes_since(with_what_follows(*stored), with_what_follows(setup));
  try {
    return changes_since(written_config(checkpoint, families_with(setup.model.family)).config, setup.config);
  } catch (const UserError&) {
    return "its config, which this program cannot read";
  }
}

// Keys that restore the schedule lengths of before; in samples if the size of a step has changed.
std::string keys_of_before(const Setup& stored, const Setup& setup) {
  const ScheduleShape &before = stored.schedule, &now = setup.schedule;
  if (stored.batch.global_batch == setup.batch.global_batch) return key_for_decay(setup, before.decay_samples);
  std::string keys = fmt::format("scheduler.lr_decay_iters=0 scheduler.lr_decay_samples={}", before.decay_samples);
  if (before.warmup_samples != now.warmup_samples)
    keys += fmt::format(" scheduler.lr_warmup_iters=0 scheduler.lr_warmup_samples={}", before.warmup_samples);
  return keys;
}

// Where the length of warm-up or decay has changed, the rate jumps; most of all where a run that was at its end is made
// longer, and its decay with it.
void report_learning_rate(const Setup& stored, const Setup& setup, StartPoint& start) {
  if (stored.schedule == setup.schedule || stored.schedule.decay_samples <= 0) return;
  const LrSchedule now = make_schedule(setup);
  const LrSchedule before = make_schedule(stored);
  const std::int64_t counted = start.progress.consumed - start.progress.skipped;
  const double rate = learning_rate(now, counted), rate_before = learning_rate(before, counted);
  const bool other_decay =
      decays_over_the_run(setup.config.scheduler) && stored.schedule.decay_samples != setup.schedule.decay_samples;
  const bool other_batch = stored.batch.global_batch != setup.batch.global_batch;
  if (rate == rate_before && !other_decay) return;
  std::string text = fmt::format("the learning rate goes on at {:.3g}", rate);
  if (rate != rate_before)
    text += fmt::format(", and not at {:.3g}, as the schedule of before would have it", rate_before);
  if (other_decay)
    text += fmt::format(
        "; it falls over the whole run, {} samples, and fell over {}: {} keeps that (scheduler.lr_decay_iters=0 means "
        "the length of the run)",
        setup.schedule.decay_samples, stored.schedule.decay_samples, keys_of_before(stored, setup));
  else if (other_batch)
    text +=
        fmt::format("; steps have another size, and so have lengths that are given in them: {} keeps those of before",
                    keys_of_before(stored, setup));
  start.warnings.push_back(text);
}

// After the decay the rate is optimizer.min_lr, which is 0 unless it is given.
void report_zero_learning_rate(const Setup& setup, StartPoint& start) {
  const std::int64_t counted = start.progress.consumed - start.progress.skipped;
  const bool over = setup.config.scheduler.lr_decay_style != LrDecayStyle::constant &&
                    counted >= setup.schedule.decay_samples && counted >= setup.schedule.warmup_samples;
  if (!over || setup.config.optimizer.min_lr > 0 || start.progress.steps >= setup.batch.train_iters) return;
  start.warnings.push_back(fmt::format(
      "the learning rate has fallen to optimizer.min_lr=0, and nothing is learned any more: a higher one, or a decay "
      "over more than {} samples (scheduler.lr_decay_iters, lr_decay_samples), goes on",
      setup.schedule.decay_samples));
}

}  // namespace

Setup continue_run(const Setup& setup, StartPoint& start) {
  if (!start.resumed()) return setup;
  const ResumeOffset resume{.steps = start.progress.steps, .samples = start.progress.consumed};
  const std::optional<Setup> stored = stored_setup(*start.checkpoint, resume, families_with(setup.model.family));
  std::optional<Setup> continued;
  if (stored) continued = with_stored_batch(setup, *stored, resume, start);
  if (!continued) continued = resolve_again(setup, setup.config, resume);
  if (const std::string changes = changes_of(*start.checkpoint, stored, *continued); !changes.empty())
    start.warnings.push_back(fmt::format("not as when {} was saved: {}", start.checkpoint->folder().string(), changes));
  if (stored) report_learning_rate(*stored, *continued, start);
  report_zero_learning_rate(*continued, start);
  return *continued;
}

std::string config_to_store(const Setup& setup) {
  Setup stored = setup;
  stored.config.train.global_batch_size = setup.batch.global_batch;
  return resolved_yaml(stored);
}

}  // namespace tera
