#pragma once
// A few steps of a small model in one layout, and all that can be said of them: losses, norms, every gradient put
// together from its pieces, weights at the end, memory and allocations. The body of a rank is the same for threads and
// for processes.

#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tera/comm/world.h"
#include "tera/train/training_step.h"
#include "tests/support/overrides.h"

namespace tera::test {

struct SweepCase {
  std::string config = "sweep_llama";  // below configs/tests
  int ranks = 1;
  Overrides overrides{};
  // Where something overflows, in the sense of fp16, on one rank alone: in a step, or in none.
  struct Overflow {
    int step = -1, rank = 0;
    bool in_loss = false;  // else in a gradient, after it was summed
  };
  Overflow overflow{};
  std::int64_t counted_targets = 0;  // of each sequence only the first so many; 0: all
  // What is in the memory of all gradients when a step begins: none of it may get into its own.
  float old_gradients = std::numeric_limits<float>::quiet_NaN();
  std::string describe() const;
};

Setup sweep_setup(const SweepCase& one);

// Whole tensors by outside name, put together from what ranks hold.
class Assembled {
 public:
  // The pieces that `params` has of all parts: of the gradients, or of the (master) weights.
  enum class What : std::uint8_t { gradients, weights };
  void add(const TrainingStep& step, Ops& ops, What what);
  // What follows from choices of experts instead (ParamSpec::Counts).
  void add_counted(const TrainingStep& step, Ops& ops);

  const std::map<std::string, std::vector<float>>& tensors() const { return tensors_; }
  bool complete() const;                          // every element came, and where it came twice it was the same
  bool is_part_of(const Assembled& whole) const;  // what came has the same bits there
  // Of what came of a tensor, the largest difference from there; 0: nothing came.
  double worst_difference(const std::string& name, const std::vector<float>& there) const;

 private:
  std::mutex mutex_;
  std::map<std::string, std::vector<float>> tensors_;
  std::map<std::string, std::vector<bool>> came_;
  bool contradicted_ = false;
};

struct SweepResult {
  double initial_loss = 0;             // by evaluation, before the first step
  std::vector<double> loss, norm;      // of each step
  std::vector<double> loss_ahead;      // of each step, every depth
  std::vector<double> scale;           // of the loss after each step, where it has one
  int skipped = 0;                     // steps, counted by every rank
  Assembled gradients;                 // of the first step
  Assembled weights, counted;          // after the last
  std::vector<double> aux_losses;      // of each step, all kinds
  std::vector<std::int32_t> choices;   // of experts, in the last step
  std::uint64_t degrees = 0;           // bits of those that dealt microbatches had
  bool peaks_as_planned = true;        // on every rank
  std::int64_t allocations = 0;        // after binding, on all ranks
  void (*start_counting)() = nullptr;  // of allocations, where they are counted
  std::int64_t (*stop_counting)() = nullptr;
  std::size_t most_bytes = 0;  // planned, of the largest rank
};

// One rank's part; all ranks write into one result, except in processes, where each has its own.
void play_rank(const SweepCase& one, Seat& seat, int steps, SweepResult& result);

// All ranks as threads.
void play_threads(const SweepCase& one, int steps, SweepResult& result);

}  // namespace tera::test
