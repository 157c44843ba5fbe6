#pragma once
// Where a run starts: from scratch, from the weights of a checkpoint, or by resuming an earlier run.

#include <optional>

#include "tera/checkpoint/checkpoint.h"
#include "tera/train/trainer.h"

namespace tera {

struct StartPoint {
  std::optional<Checkpoint> checkpoint{};  // none: from scratch
  Checkpoint::Take take = Checkpoint::Take::everything;
  Progress progress{};
  bool is_in_save = false;                         // the checkpoint is one of checkpoint.save
  std::string started_from{};                      // see CheckpointSource
  std::vector<std::string> remarks{}, warnings{};  // for the log
  bool resumed() const { return checkpoint && take == Checkpoint::Take::everything; }
};

// The newest complete checkpoint in checkpoint.save takes precedence over checkpoint.load, so that a run that was ended
// resumes when it is started again with the same command line; unless checkpoint.load names a checkpoint in
// checkpoint.save, and the newest was not started from that one. Every process searches for itself, before anything is
// written. UserError for a checkpoint that cannot be resumed, and where there are checkpoints but none is complete.
StartPoint find_start(const Setup& setup);

// A hint to append to an error message: where the checkpoint was found in checkpoint.save rather than asked for, how to
// start from scratch; where it is damaged, which earlier one is complete. Empty otherwise.
std::string hint_for(const StartPoint& start, bool damaged = false);

// A hash that ranks compare: all must start from the same checkpoint.
std::uint64_t hash_of(const StartPoint& start);

// Copies the kernel choices of the run that saved the checkpoint, where this rank has none of its own.
void restore_kernel_choices(const StartPoint& start, const std::filesystem::path& run_dir, int rank);

// Drops lines of later steps from an earlier run's metrics, so that no step is there twice. False: there is no file.
bool keep_metrics_up_to(const std::filesystem::path& file, std::int64_t step);

}  // namespace tera
