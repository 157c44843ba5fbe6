#pragma once
// A pipeline of threads that keeps the order: one thread makes jobs, several work on them, and the owner takes them
// back in the order in which they were made. Jobs in flight are bounded in number and in bytes; they are reused with
// their memory.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "tera/base/error.h"

namespace tera {

template <class Job>
class OrderedPipeline {
 public:
  struct Options {
    int workers = 1;
    std::size_t jobs = 8;           // in flight at a time
    std::uint64_t bytes = 1 << 26;  // limit for the jobs in flight; one job may be larger
  };
  // make() returns false when there are no more jobs; size() returns the bytes of a job after it was made. What they
  // throw is thrown by the next() that would return the job.
  struct Steps {
    std::function<bool(Job&, const std::atomic<bool>& stop)> make;
    std::function<void(Job&, int worker)> work;
    std::function<std::uint64_t(const Job&)> size;
  };
  enum class State : std::uint8_t { ready, waiting, ended };

  OrderedPipeline(const Options& options, Steps steps)
      : options_(options), steps_(std::move(steps)), slots_(options.jobs) {
    try {
      threads_.emplace_back([this] { make_jobs(); });
      for (int i = 0; i < options_.workers; ++i) threads_.emplace_back([this, i] { work(i); });
    } catch (const std::system_error& error) {
      end_threads();
      fail_user("the system gives no {} threads ({})", options_.workers + 1, error.what());
    }
  }
  OrderedPipeline(const OrderedPipeline&) = delete;
  OrderedPipeline& operator=(const OrderedPipeline&) = delete;
  ~OrderedPipeline() { end_threads(); }

  // Waits until the next job is done, for at most `timeout`.
  State next(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    Slot& slot = slot_of(taken_);
    const auto over = [&] { return slot.done || (ended_ && taken_ == made_); };
    if (!job_done_.wait_for(lock, timeout, over)) return State::waiting;
    if (!slot.done && make_error_) std::rethrow_exception(make_error_);
    if (!slot.done) return State::ended;
    if (slot.error) std::rethrow_exception(slot.error);
    return State::ready;
  }
  Job& job() { return slot_of(taken_).job; }  // after next() returned ready
  void release() {
    {
      const std::lock_guard lock(mutex_);
      Slot& slot = slot_of(taken_++);
      slot.done = false;
      bytes_ -= slot.bytes;
    }
    slot_free_.notify_one();
  }

 private:
  struct Slot {
    Job job;
    std::uint64_t bytes = 0;
    bool done = false;
    std::exception_ptr error;
  };
  Slot& slot_of(std::uint64_t number) { return slots_[number % slots_.size()]; }

  void make_jobs() {
    while (true) {
      std::unique_lock lock(mutex_);
      slot_free_.wait(lock, [this] {
        return stop_ || (made_ - taken_ < slots_.size() && (bytes_ < options_.bytes || made_ == taken_));
      });
      if (stop_) return;
      Slot& slot = slot_of(made_);
      lock.unlock();
      const bool made = make_one(slot);
      lock.lock();
      if (made) {
        ++made_;
        bytes_ += slot.bytes;
        job_made_.notify_one();
        continue;
      }
      ended_ = true;
      job_made_.notify_all();
      job_done_.notify_one();
      return;
    }
  }

  bool make_one(Slot& slot) {
    try {
      const bool made = steps_.make(slot.job, stop_);
      if (made) slot.bytes = steps_.size(slot.job);
      return made;
    } catch (...) {
      make_error_ = std::current_exception();  // read only after ended_ was seen
      return false;
    }
  }

  void work(int worker) {
    while (true) {
      std::unique_lock lock(mutex_);
      job_made_.wait(lock, [this] { return stop_ || ended_ || claimed_ < made_; });
      if (stop_ || claimed_ == made_) return;
      Slot& slot = slot_of(claimed_++);
      lock.unlock();
      try {
        steps_.work(slot.job, worker);
      } catch (...) {
        slot.error = std::current_exception();
      }
      lock.lock();
      slot.done = true;
      if (&slot == &slot_of(taken_)) job_done_.notify_one();
    }
  }

  void end_threads() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    slot_free_.notify_all();
    job_made_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  Options options_;
  Steps steps_;
  std::vector<Slot> slots_;
  std::mutex mutex_;
  std::condition_variable slot_free_, job_made_, job_done_;
  std::uint64_t made_ = 0, claimed_ = 0, taken_ = 0, bytes_ = 0;
  bool ended_ = false;
  std::atomic<bool> stop_ = false;
  std::exception_ptr make_error_;
  std::vector<std::thread> threads_;
};

}  // namespace tera
