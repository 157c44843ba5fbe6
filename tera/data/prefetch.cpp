#include "tera/data/prefetch.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "tera/base/error.h"

namespace tera {

Prefetch::Slot::Slot(std::size_t rows, const BatchOptions& options)
    : tokens(rows),
      targets(rows),
      positions(rows),
      offsets(options.reset_attention_mask ? rows + 1 : 0),
      ahead_tokens(static_cast<std::size_t>(options.depths) * rows),
      ahead_targets(ahead_tokens.size()),
      row_ids(rows) {
  room = {.tokens = tokens,
          .targets = targets,
          .positions = positions,
          .row_ids = row_ids,
          .offsets = offsets,
          .ahead_tokens = ahead_tokens,
          .ahead_targets = ahead_targets};
}

Prefetch::Prefetch(const std::vector<BatchSource>& sources, std::unique_ptr<BatchJobs> jobs, const Options& options)
    : jobs_(std::move(jobs)) {
  const auto rows = static_cast<std::size_t>(options.batch.micro_batch_size * options.batch.seq_length);
  const int slots = options.workers > 0 ? std::max(options.ready, options.workers) + 1 : 1;  // one is being used
  slots_.reserve(static_cast<std::size_t>(slots));  // spans of a slot must stay where they are
  for (int i = 0; i < slots; ++i) slots_.emplace_back(rows, options.batch);
  loaders_.resize(static_cast<std::size_t>(std::max(options.workers, 1)));
  for (Loaders& own : loaders_)
    for (const BatchSource& source : sources) own.emplace_back(source, options.batch);
  if (options.deal) {
    Dealer::Options deal = *options.deal;
    // As many as slots can be of, and as many again: threads do not come in the order of their jobs.
    deal.steps = static_cast<std::size_t>(2 * (slots / deal.deal.counts.back() + 3));
    dealer_ = std::make_unique<Dealer>(deal);
  }
  for (int i = 0; i < options.workers; ++i)
    workers_.emplace_back([this, i] { work(loaders_[static_cast<std::size_t>(i)]); });
}

Prefetch::~Prefetch() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  room_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Prefetch::read(const BatchJob& job, Loaders& loaders, Slot& slot) {
  BatchLoader& loader = loaders[job.source];
  if (dealer_) return read_dealt(job, loader, slot);
  Loaded& loaded = slot.loaded;
  loaded.rows = slot.room;
  const BatchCounts counts = loader.fill(job.consumed, job.microbatch, loaded.rows);
  loaded.own_targets = counts.targets;
  if (counts.documents > 0)
    loaded.rows.offsets = loaded.rows.offsets.first(static_cast<std::size_t>(counts.documents + 1));
  loaded.own_ahead = counts.ahead;
  const BatchCounts all = job.microbatch == 0 ? loader.count(job.consumed, job.samples) : BatchCounts{};
  loaded.all_targets = all.targets;
  loaded.all_ahead = all.ahead;
}

void Prefetch::read_dealt(const BatchJob& job, BatchLoader& loader, Slot& slot) {
  const Dealer::Step& step = dealer_->step(loader, job.consumed, job.samples);
  slot.loaded = {
      .rows = {}, .all_targets = step.counts().targets, .all_ahead = step.counts().ahead, .deal = &step.deal()};
  if (job.microbatch >= step.deal().microbatches()) return;
  const Dealer::Filled filled = dealer_->fill(loader, step, job.microbatch, slot.room);
  slot.loaded.rows = filled.rows;
  slot.loaded.own_targets = filled.counts.targets;
  slot.loaded.own_ahead = filled.counts.ahead;
}

void Prefetch::work(Loaders& loaders) {
  std::unique_lock lock(mutex_);
  for (;;) {
    room_.wait(lock, [&] { return stopping_ || no_more_ || started_ < given_back_ + slots_.size(); });
    if (stopping_ || no_more_) return;
    const auto job = jobs_->next();
    if (!job) {
      no_more_ = true;
      room_.notify_all();
      arrival_.notify_one();
      return;
    }
    Slot& mine = slot(started_++);
    lock.unlock();
    try {
      read(*job, loaders, mine);
    } catch (...) {
      mine.error = std::current_exception();
    }
    lock.lock();
    mine.ready = true;
    arrival_.notify_one();
  }
}

Prefetch::Slot& Prefetch::wait_for_next() {
  std::unique_lock lock(mutex_);
  if (given_back_ < handed_out_) {
    slot(given_back_++).ready = false;
    room_.notify_one();
  }
  Slot& next = slot(handed_out_);
  arrival_.wait(lock, [&] { return next.ready || (no_more_ && started_ == handed_out_); });
  require(next.ready, "a microbatch was asked for after the last");
  ++handed_out_;
  return next;
}

Prefetch::Slot& Prefetch::read_next() {
  const auto job = jobs_->next();
  require(job.has_value(), "a microbatch was asked for after the last");
  read(*job, loaders_.front(), slots_.front());
  return slots_.front();
}

const Prefetch::Loaded& Prefetch::next() {
  const auto begin = std::chrono::steady_clock::now();
  const Slot& next = workers_.empty() ? read_next() : wait_for_next();
  waited_ms_ += std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  if (next.error) std::rethrow_exception(next.error);
  return next.loaded;
}

double Prefetch::take_waited_ms() { return std::exchange(waited_ms_, 0); }

}  // namespace tera
