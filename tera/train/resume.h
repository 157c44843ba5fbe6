#pragma once
// Where a run starts: anew, from the weights of a checkpoint, or where an earlier run was.

#include <optional>

#include "tera/checkpoint/checkpoint.h"
#include "tera/train/trainer.h"

namespace tera {

struct StartPoint {
  std::optional<Checkpoint> checkpoint{};  // none: anew
  Checkpoint::Take take = Checkpoint::Take::everything;
  Progress progress{};
  bool is_in_save = false;                         // the checkpoint is one of checkpoint.save
  std::string started_from{};                      // see CheckpointSource
  std::vector<std::string> remarks{}, warnings{};  // for whoever starts it
  bool resumed() const { return checkpoint && take == Checkpoint::Take::everything; }
};

// The newest complete checkpoint in checkpoint.save goes before checkpoint.load, so that a run that was ended goes on
// when it is started again with the same words; unless checkpoint.load names one of those itself, and the newest was
// not begun from just that. Every process looks for itself, before anything is written. UserError for what cannot be
// gone on from, and where there are checkpoints but none that is complete.
StartPoint find_start(const Setup& setup);

// What to add to a message where the checkpoint was not asked for: that it was found, and how to start anew. Or
// nothing. Where it is damaged, which one before it is complete.
std::string hint_for(const StartPoint& start, bool damaged = false);

// What ranks compare: all must start from the same.
std::uint64_t hash_of(const StartPoint& start);

// Kernel choices of the run that saved the checkpoint, where this rank has none of its own.
void restore_kernel_choices(const StartPoint& start, const std::filesystem::path& run_dir, int rank);

// Takes lines of later steps out of an earlier run's metrics, so that no step is there twice. False: there are none.
bool keep_metrics_up_to(const std::filesystem::path& file, std::int64_t step);

}  // namespace tera
