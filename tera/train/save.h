#pragma once
// When a run saves, and what it says of it.

#include <chrono>
#include <string>

#include "tera/base/log.h"
#include "tera/checkpoint/checkpoint_writer.h"
#include "tera/train/training_step.h"

namespace tera {

struct Progress;

class CheckpointSaver {
 public:
  struct Ranks {
    Backend& backend;
    Comm& world;
    Log& log;
  };
  struct Source {
    std::string config;                             // stored with each checkpoint, as is the next
    std::string started_from = {};                  // see CheckpointSource
    std::int64_t saved_step = -1;                   // is in the folder already; negative: none
    std::shared_ptr<CheckpointFolder> folder = {};  // on the first rank, where its lock is held already
  };
  // All ranks make one.
  CheckpointSaver(const Setup& setup, const TrainingStep& step, const Ranks& ranks, Source source);

  bool is_due(std::int64_t step) const { return interval_ > 0 && step % interval_ == 0 && step != last_step_; }
  std::int64_t last_step() const { return last_step_; }  // that was saved; negative: none

  // As in CheckpointWriter.
  void save(const Progress& progress, const TrainingStep& step);
  bool written() { return writer_.written(); }
  void publish() { writer_.publish(); }
  void finish() { writer_.finish(); }

  std::uint64_t file_bytes() const { return writer_.file_bytes(); }

 private:
  void tell_durable(std::int64_t step, const std::filesystem::path& folder);

  Log& log_;
  std::int64_t interval_, last_step_, seed_;
  bool async_;
  std::string config_, started_from_;
  std::chrono::steady_clock::time_point begin_;  // of the save at hand
  CheckpointWriter writer_;
};

}  // namespace tera
