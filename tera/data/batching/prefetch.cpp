#include "tera/data/batching/prefetch.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "tera/base/error.h"

namespace tera {

Prefetch::Prefetch(const std::vector<BatchSource>& sources, std::unique_ptr<BatchJobs> jobs, const Options& options)
    : jobs_(std::move(jobs)) {
  const BatchSizes sizes{.rows = options.batch.micro_batch_size * options.batch.seq_length,
                         .mtp_depths = options.batch.mtp_depths,
                         .packed = options.batch.reset_attention_mask};
  const int slots = options.workers > 0 ? std::max(options.ready, options.workers) + 1 : 1;  // one is being used
  slots_.reserve(static_cast<std::size_t>(slots));  // spans of a slot must stay where they are
  for (int i = 0; i < slots; ++i) slots_.emplace_back(sizes);
  loaders_.resize(static_cast<std::size_t>(std::max(options.workers, 1)));
  for (Loaders& loaders : loaders_)
    for (const BatchSource& source : sources) loaders.emplace_back(source, options.batch);
  if (options.dynamic_cp) {
    DynamicCpLoader::Options dynamic_cp = *options.dynamic_cp;
    // Twice as many steps as the slots can belong to: threads do not read in the order of their jobs.
    dynamic_cp.steps = static_cast<std::size_t>(2 * (slots / dynamic_cp.scheduler.counts.back() + 3));
    dynamic_cp_loader_ = std::make_unique<DynamicCpLoader>(dynamic_cp);
  }
  for (int i = 0; i < options.workers; ++i)
    workers_.emplace_back([this, i] { work(loaders_[static_cast<std::size_t>(i)]); });
}

Prefetch::~Prefetch() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  slot_free_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Prefetch::read(const BatchJob& job, Loaders& loaders, Slot& slot) {
  BatchLoader& loader = loaders[job.source];
  if (dynamic_cp_loader_) return read_assigned(job, loader, slot);
  Loaded& loaded = slot.loaded;
  const BatchCounts counts = loader.fill(job.consumed, job.microbatch, slot.buffers.spans());
  loaded.rows = slot.buffers.filled(counts);
  loaded.local_targets = counts.targets;
  loaded.local_mtp = counts.mtp_targets;
  const BatchCounts all = job.microbatch == 0 ? loader.count(job.consumed, job.samples) : BatchCounts{};
  loaded.all_targets = all.targets;
  loaded.all_mtp = all.mtp_targets;
}

void Prefetch::read_assigned(const BatchJob& job, BatchLoader& loader, Slot& slot) {
  const DynamicCpLoader::Step& step = dynamic_cp_loader_->step(loader, job.consumed, job.samples);
  slot.loaded = {.rows = {},
                 .all_targets = step.counts().targets,
                 .all_mtp = step.counts().mtp_targets,
                 .scheduler = &step.scheduler()};
  if (job.microbatch >= step.scheduler().microbatches()) return;
  const DynamicCpLoader::Filled filled = dynamic_cp_loader_->fill(loader, step, job.microbatch, slot.buffers.spans());
  slot.loaded.rows = filled.rows;
  slot.loaded.local_targets = filled.counts.targets;
  slot.loaded.local_mtp = filled.counts.mtp_targets;
}

void Prefetch::work(Loaders& loaders) {
  std::unique_lock lock(mutex_);
  for (;;) {
    slot_free_.wait(lock, [&] { return stopping_ || no_more_ || started_ < released_ + slots_.size(); });
    if (stopping_ || no_more_) return;
    const auto job = jobs_->next();
    if (!job) {
      no_more_ = true;
      slot_free_.notify_all();
      slot_ready_.notify_one();
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
    slot_ready_.notify_one();
  }
}

Prefetch::Slot& Prefetch::wait_for_next() {
  std::unique_lock lock(mutex_);
  if (released_ < returned_) {
    slot(released_++).ready = false;
    slot_free_.notify_one();
  }
  Slot& next = slot(returned_);
  slot_ready_.wait(lock, [&] { return next.ready || (no_more_ && started_ == returned_); });
  require(next.ready, "a microbatch was asked for after the last");
  ++returned_;
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
