#include "tera/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "tera/base/error.h"
#include "tera/base/signals.h"
#include "tera/models/flops.h"
#include "tera/ops/optim.h"
#include "tera/train/save.h"

namespace tera {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t max_overflows_at_floor = 50;  // in a row, each with other data

double milliseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

// The key that gives the length of the run.
std::string_view length_key(const TrainConfig& train) {
  return train.train_samples > 0 ? "train.train_samples" : "train.train_iters";
}

// A microbatch with no target left to count must not divide by zero.
float inverse(std::int64_t count) { return 1.0f / static_cast<float>(std::max<std::int64_t>(count, 1)); }

// A step loads all its microbatches at once, so a full step is prefetched, unless that takes too much memory.
int buffers_ready(const BatchShape& batch) {
  constexpr double max_bytes = 0x1p26, bytes_per_row = 3 * sizeof(std::int32_t) + sizeof(std::int64_t);
  const double bytes = static_cast<double>(batch.micro_batch * batch.seq_length) * bytes_per_row;
  const auto max_buffers = static_cast<std::int64_t>(std::max(max_bytes / bytes, 1.0));
  return static_cast<int>(std::min(batch.num_microbatches, max_buffers));
}

}  // namespace

LrSchedule make_schedule(const Setup& setup) {
  const auto& scheduler = setup.config.scheduler;
  return {.style = scheduler.lr_decay_style,
          .wsd_style = scheduler.lr_wsd_decay_style,
          .init_lr = scheduler.lr_warmup_init,
          .max_lr = setup.config.optimizer.lr,
          .min_lr = setup.config.optimizer.min_lr,
          .warmup_samples = setup.schedule.warmup_samples,
          .decay_samples = setup.schedule.decay_samples,
          .wsd_decay_samples = setup.schedule.wsd_decay_samples};
}

bool decays_over_the_run(const SchedulerConfig& scheduler) {
  return scheduler.lr_decay_style != LrDecayStyle::constant && scheduler.lr_decay_iters == 0 &&
         scheduler.lr_decay_samples == 0;
}

std::string key_for_decay(const Setup& setup, std::int64_t samples) {
  const std::int64_t batch = setup.batch.global_batch;
  const bool in_steps = setup.config.train.train_samples == 0 && samples % batch == 0;
  return in_steps ? fmt::format("scheduler.lr_decay_iters={}", samples / batch)
                  : fmt::format("scheduler.lr_decay_samples={}", samples);
}

DynamicCpReport DynamicCpReport::of(const DynamicCpScheduler& scheduler) {
  DynamicCpReport report{.padding = scheduler.padding()};
  const DynamicCpOptions& options = scheduler.options();
  for (int degree = 1; degree <= options.ranks; ++degree) {
    if (options.ranks % degree != 0) continue;
    std::int32_t number = 0;
    for (std::int64_t microbatch = 0; microbatch < scheduler.microbatches(); ++microbatch)
      for (int replica = 0; replica < options.replicas; ++replica)
        number += scheduler.degree(microbatch, replica) == degree ? 1 : 0;
    if (number == 0 || report.used == report.degrees.size()) continue;
    report.degrees[report.used++] = degree;
    report.degrees[report.used++] = number;
  }
  return report;
}

Trainer::Trainer(const Setup& setup, Backend& backend, DataSource data, Log& log, Comm* world, const Progress& start)
    : setup_(setup),
      data_(std::move(data)),
      log_(log),
      step_(setup, world ? world->rank() : 0),
      schedule_(make_schedule(setup)),
      done_(start.steps),
      consumed_(start.consumed),
      tokens_(start.tokens),
      skipped_(start.skipped) {
  schedule_.check();
  // First: what does not fit is refused before anything is allocated.
  if (world) {
    step_.bind(backend, *world);
  } else {
    step_.bind(backend);
  }
  report_late_ = backend.ops->traits().asynchronous;
  peak_flops_ = backend.peak_flops;
  open_batches();
}

// Each rank reads the samples of its data-parallel replica; middle pipeline stages need no token ids.
void Trainer::open_batches() {
  const RankLayout& layout = step_.layout();
  const BatchShape& batch = setup_.batch;
  Prefetch::Options options{.batch = batch_options(setup_, data_.tokenizer.get()),
                            .workers = static_cast<int>(setup_.config.dataset.num_workers),
                            .ready = buffers_ready(batch)};
  options.batch.data_rank = layout.groups.dp.rank();
  options.batch.data_ranks = layout.groups.dp.size();
  options.batch.needs_ids = layout.has_loss || std::ranges::any_of(layout.chunks, &BlockRange::embedding);
  if (setup_.config.dataset.dataloader_type == DataloaderType::cyclic)
    sampler_ = std::make_unique<CyclicSampler>(cyclic_options(setup_, *data_.train));
  Prefetch::Options train_options = options;
  if (setup_.parallel.dynamic_cp)
    train_options.dynamic_cp = dynamic_cp_options(setup_, layout.groups.dp.rank(), layout.groups.cp.rank());
  train_batches_ = std::make_unique<Prefetch>(
      std::vector{BatchSource{data_.train.get(), sampler_.get()}},
      std::make_unique<TrainJobs>(TrainJobs::Options{
          .consumed = consumed_, .steps = std::max<std::int64_t>(batch.train_iters - done_, 0), .batch = batch}),
      train_options);
  if (data_.valid.empty()) return;
  options.workers = std::min(options.workers, 1);
  options.batch.mtp_depths = 0;
  std::vector<BatchSource> sources;
  std::vector<std::int64_t> batches;
  for (const ValidationSet& set : data_.valid) {
    sources.push_back({set.dataset.get()});
    batches.push_back(set.batches);
    if (!set.name.empty()) set_losses_.push_back({set.name});
  }
  valid_batches_ = std::make_unique<Prefetch>(
      sources, std::make_unique<EvaluationJobs>(EvaluationJobs::Options{std::move(batches), batch}), options);
}

void Trainer::run(StopRequest& stop) {
  begin_ = Clock::now();
  stop.collect();
  if (done_ >= setup_.batch.train_iters) report_nothing_left();
  while (done_ < setup_.batch.train_iters && !stopping_) {
    start_step(stop);
    const bool evaluates = evaluation_is_due();
    if (!report_late_ || evaluates) report_pending();
    const bool last = stopping_ || done_ == setup_.batch.train_iters;
    if (saver_ && (saver_->is_due(done_) || (last && evaluates && saver_->last_step() != done_))) save();
    if (saver_ && last && evaluates) saver_->finish();  // whatever ends the evaluation, the run is safe
    if (evaluates) evaluate(stop);
  }
  report_pending();
  step_.wait_for_weights();
  if (stopping_ && done_ < setup_.batch.train_iters)
    log_.info("{} after step {} of {}{}",
              out_of_time() ? "train.exit_duration_in_mins is over: stopped" : "stopped on request", done_,
              setup_.batch.train_iters, saver_ ? "" : "; nothing was saved, as no checkpoint.save is given");
  for (auto& sink : sinks_) sink->finish();
  if (overflows_ > 0) log_.info("{} steps were skipped, as their gradients overflowed fp16", overflows_);
  if (!saver_) return;
  if (saver_->last_step() != done_) save();
  saver_->finish();
}

void Trainer::report_nothing_left() {
  std::string decay;
  if (decays_over_the_run(setup_.config.scheduler) && done_ == setup_.batch.train_iters)
    decay = fmt::format(
        ", and the learning rate then falls over the longer run, so that it is higher than it was: {} with it leaves "
        "it at optimizer.min_lr={:g}",
        key_for_decay(setup_, setup_.schedule.decay_samples), setup_.config.optimizer.min_lr);
  log_.info("nothing is left to train: step {} of {} was reached before; a larger {} goes on{}", done_,
            setup_.batch.train_iters, length_key(setup_.config.train), decay);
}

// The pending step is reported before saving, so a loss that is not finite ends the run instead of being saved.
void Trainer::save() {
  report_pending();
  saver_->save({.steps = done_, .consumed = consumed_, .skipped = skipped_, .tokens = tokens_}, step_);
}

bool Trainer::out_of_time() const {
  const double limit_ms = setup_.config.train.exit_duration_in_mins * 60e3;
  return limit_ms > 0 && milliseconds_since(begin_) >= limit_ms;
}

// The loss is divided by the counted targets of the whole global batch, so it does not depend on how the batch is cut;
// loss_reduction=microbatch divides by each microbatch's own, as Megatron-LM does. MTP losses are divided by their own
// targets, of which there are fewer, and the mean over depths has a factor.
// Returns the number of microbatches, which dynamic context parallelism decides when it schedules the documents.
std::int64_t Trainer::load_batch() {
  const bool global = setup_.config.train.loss_reduction == LossReduction::global;
  const std::int64_t listed =
      setup_.parallel.dynamic_cp ? setup_.batch.max_dynamic_microbatches : setup_.batch.microbatches_at(consumed_);
  std::int64_t microbatches = listed;
  for (std::int64_t i = 0; i < listed; ++i) {
    const Prefetch::Loaded& batch = train_batches_->next();
    if (i == 0) counts_ = {.targets = batch.all_targets, .mtp_targets = batch.all_mtp};
    if (batch.scheduler) microbatches = batch.scheduler->microbatches();
    if (batch.scheduler && i == 0) assigned_ = DynamicCpReport::of(*batch.scheduler);
    if (i >= microbatches) continue;
    const std::int64_t all = microbatches * setup_.parallel.dp;
    const auto depths = static_cast<std::size_t>(setup_.model.mtp_layers);
    std::array<float, max_mtp_layers> mtp_scales{};
    for (std::size_t depth = 0; depth < depths; ++depth)
      mtp_scales[depth] = static_cast<float>(setup_.model.mtp_loss_factor / static_cast<double>(depths)) *
                          inverse(global ? counts_.mtp_targets[depth] : batch.local_mtp[depth] * all);
    step_.load(i, batch.rows, inverse(global ? counts_.targets : batch.local_targets * all), inverse(all),
               std::span(mtp_scales).first(depths));
  }
  return microbatches;
}

// Skipped steps do not count in the schedule, and whether the pending step was skipped is not known on the host; it
// gives the device both rates to choose from.
LearningRates Trainer::learning_rates() const {
  const std::int64_t trained = consumed_ - skipped_, pending = pending_ ? pending_->samples : 0;
  return {learning_rate(schedule_, trained), learning_rate(schedule_, trained - pending)};
}

// Enqueues a step, then reports the one before it, whose results have arrived meanwhile. Votes to stop are read with
// the results, so all ranks see them at the same step.
void Trainer::start_step(const StopRequest& stop) {
  const auto begin = Clock::now();
  if (!pending_) last_report_ = begin;
  const std::int64_t microbatches = load_batch();
  Pending started;
  started.data_ms = train_batches_->take_waited_ms();
  started.rates = learning_rates();
  step_.run(started.rates, microbatches);
  if (const std::string remark = step_.take_remark(); !remark.empty()) log_.info("{}", remark);
  started.reading = step_.read_back({.stop = stop.asked() || out_of_time(), .written = saver_ && saver_->written()});
  started.counts = counts_;
  started.assigned = assigned_;
  started.samples = setup_.batch.global_batch_at(consumed_);
  consumed_ += started.samples;
  tokens_ += started.samples * setup_.batch.seq_length;
  started.step = ++done_;
  started.tokens = tokens_;
  started.enqueue_ms = milliseconds_since(begin);
  report_pending();
  pending_ = started;
}

void Trainer::report_pending() {
  if (!pending_) return;
  const Pending pending = *pending_;
  pending_.reset();
  report(pending);
}

void Trainer::report(const Pending& pending) {
  const StepReading reading = step_.result(pending.reading);
  const VoteCounts votes = votes_of(reading);
  stopping_ = stopping_ || votes.stop > 0;
  if (saver_ && votes.written >= step_.layout().groups.world.size()) saver_->publish();
  metrics_.clear();
  add_loss(pending, reading);
  add_speed(pending);
  if (setup_.batch.rampup.start > 0) metrics_.add("global_batch_size", pending.samples);
  if (step_.scaling().scaler()) note_scaling(pending, reading);
  metrics_.add("skipped", last_skipped_);
  add_batch(pending);
  step_.features().report(reading, {.step = pending.step, .samples = pending.samples, .counts = pending.counts},
                          metrics_);
  const StepMetrics metrics{.step = pending.step, .values = metrics_.all()};
  for (auto& sink : sinks_) sink->step(metrics);
  check_finite(metrics);
}

void Trainer::add_loss(const Pending& pending, const StepReading& reading) {
  const auto targets = static_cast<double>(std::max<std::int64_t>(pending.counts.targets, 1));
  metrics_.add("loss", reading.number("loss_sum") / targets);
  metrics_.add("grad_norm", reading.number("grad_norm"));
  metrics_.add("lr", last_skipped_ ? pending.rates.after_skip : pending.rates.after_update);
  metrics_.add("tokens", pending.tokens);
}

// The time between reports; but the last step is reported right after the one before it: at least its host time.
void Trainer::add_speed(const Pending& pending) {
  const double step_ms = std::max(milliseconds_since(last_report_), pending.enqueue_ms);
  last_report_ = Clock::now();
  const double tokens_per_s = static_cast<double>(pending.samples * setup_.batch.seq_length) / step_ms * 1e3;
  const double tflops = tokens_per_s * model_flops_per_token(setup_.model, setup_.batch.seq_length) / 1e12 /
                        step_.layout().groups.world.size();
  metrics_.add("step_ms", step_ms);
  metrics_.add("data_ms", pending.data_ms);
  metrics_.add("tokens_per_s", tokens_per_s);
  metrics_.add("tflops_per_device", tflops);
  metrics_.add("mfu", peak_flops_ > 0 ? MetricValue(tflops * 1e12 / peak_flops_) : MetricValue{});
}

// Dynamic context parallelism: degrees with the number of microbatches of all replicas that have them, and the fraction
// of padding rows.
void Trainer::add_batch(const Pending& pending) {
  if (!setup_.parallel.dynamic_cp) return;
  metrics_.add("cp_degrees",
               MetricTable{.values = std::span(pending.assigned.degrees).first(pending.assigned.used), .columns = 2});
  metrics_.add("padding", pending.assigned.padding);
}

void Trainer::note_scaling(const Pending& pending, const StepReading& reading) {
  const ScaleReading scaling = LossScaling::state_of(reading);
  const LossScaleRule& rule = step_.scaling().scaler()->rule();
  const bool at_floor = rule.dynamic && last_scale_ == rule.min_scale;
  last_skipped_ = scaling.skipped != 0;
  last_scale_ = scaling.scale;
  if (step_.scaling().scales_losses()) metrics_.add("loss_scale", scaling.scale);
  const bool overflowed = last_skipped_ && !std::isfinite(reading.number("grad_norm"));  // not vetoed
  overflows_at_floor_ = at_floor && overflowed ? overflows_at_floor_ + 1 : 0;
  if (last_skipped_) skipped_ += pending.samples;
  if (!overflowed) return;
  ++overflows_;
  if (!at_floor || reported_floor_) return;
  reported_floor_ = true;
  log_.warn("step {}: the gradients overflow at the smallest loss scale, {}, too (mixed_precision.min_loss_scale)",
            pending.step, rule.min_scale);
}

// A dynamic loss scale expects steps whose gradients overflow; but where it is at its minimum, and every step is
// skipped, the run is as lost as without one.
void Trainer::check_finite(const StepMetrics& metrics) const {
  const double loss = metrics.number("loss"), grad_norm = metrics.number("grad_norm");
  const bool overflowed = last_skipped_ && !std::isfinite(grad_norm) && step_.scaling().scales_losses();
  if (overflowed && step_.scaling().scaler()->rule().dynamic) {
    require_user(overflows_at_floor_ < max_overflows_at_floor,
                 "step {}: the gradients have overflowed fp16 for {} steps in a row at the smallest loss scale, {} "
                 "(mixed_precision.min_loss_scale), and nothing was trained meanwhile; a lower optimizer.lr from an "
                 "earlier checkpoint, a smaller mixed_precision.min_loss_scale, or mixed_precision.precision=bf16 may "
                 "help",
                 metrics.step, overflows_at_floor_, step_.scaling().scaler()->rule().min_scale);
    return;
  }
  if (overflowed)
    fail_user(
        "step {}: the gradients overflow fp16 with mixed_precision.loss_scale={}; a smaller one, or 0 for one that "
        "follows the gradients, may help",
        metrics.step, step_.scaling().scaler()->initial());
  require_user(std::isfinite(loss) && std::isfinite(grad_norm),
               "step {}: the loss is {}, the gradient norm {}, and one that is not finite ends the run; a lower "
               "optimizer.lr, a longer "
               "scheduler.lr_warmup_iters or a smaller optimizer.clip_grad may help",
               metrics.step, loss, grad_norm);
}

bool Trainer::evaluation_is_due() const {
  return valid_batches_ && (done_ % setup_.config.train.eval_interval == 0 || done_ == setup_.batch.train_iters);
}

// Always the same first global batches of the validation data, so that losses compare: an evaluation that is cut short
// has no loss, and the run ends after it.
void Trainer::evaluate(const StopRequest& stop) {
  LossSum all;
  for (std::size_t i = 0; i < data_.valid.size(); ++i) {
    const LossSum sum = evaluate(data_.valid[i], stop);
    if (!sum.complete) {
      stopping_ = true;
      log_.info("the evaluation after step {} was not finished: stopped on request", done_);
      return;
    }
    if (!set_losses_.empty()) set_losses_[i].loss = sum.mean();
    all.loss += sum.loss;
    all.targets += sum.targets;
  }
  const EvalMetrics metrics{.step = done_, .eval_loss = all.mean(), .tokens = tokens_, .sets = set_losses_};
  for (auto& sink : sinks_) sink->eval(metrics);
}

// Votes to stop are summed with the losses of each batch.
Trainer::LossSum Trainer::evaluate(const ValidationSet& set, const StopRequest& stop) {
  LossSum sum;
  for (std::int64_t i = 0; i < set.batches; ++i) {
    for (std::int64_t j = 0; j < setup_.batch.num_microbatches; ++j) {
      const Prefetch::Loaded& batch = valid_batches_->next();
      sum.targets += batch.all_targets;
      step_.load(j, batch.rows, 0);
    }
    const TrainingStep::Evaluated batch = step_.evaluate(stop.asked());
    sum.loss += batch.loss_sum;
    sum.complete = batch.stop == 0 || i + 1 == set.batches;
    if (!sum.complete) break;
  }
  return sum;
}

}  // namespace tera
