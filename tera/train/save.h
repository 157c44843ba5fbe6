#pragma once
// When a run saves checkpoints, and what it logs about them.

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
    std::string config;             // stored with each checkpoint
    std::string started_from = {};  // stored with each checkpoint, see CheckpointSource
    std::int64_t saved_step = -1;   // the step of a checkpoint that is in the folder already; negative: none
    std::shared_ptr<CheckpointFolder> folder = {};  // on rank 0, if it holds the lock already
  };
  // Constructed on all ranks.
  CheckpointSaver(const Setup& setup, const TrainingStep& step, const Ranks& ranks, Source source);

  bool is_due(std::int64_t step) const { return interval_ > 0 && step % interval_ == 0 && step != last_step_; }
  std::int64_t last_step() const { return last_step_; }  // step of the last save; negative: none

  // The calls of CheckpointWriter.
  void save(const Progress& progress, const TrainingStep& step);
  bool written() { return writer_.written(); }
  void publish() { writer_.publish(); }
  void finish() { writer_.finish(); }

  std::uint64_t file_bytes() const { return writer_.file_bytes(); }

 private:
  void report_durable(std::int64_t step, const std::filesystem::path& folder);

  Log& log_;
  std::int64_t interval_, last_step_, seed_;
  bool async_;
  std::string config_, started_from_;
  std::chrono::steady_clock::time_point begin_;  // begin of the current save
  CheckpointWriter writer_;
};

}  // namespace tera
