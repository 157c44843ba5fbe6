#pragma once
// A few training steps of a small model in one layout, and all their results: losses, norms, every gradient assembled
// from its shards, weights at the end, memory and allocations. The body of a rank is the same for threads and for
// processes.

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
  // An fp16 overflow on one rank alone, in one step or in none.
  struct Overflow {
    int step = -1, rank = 0;
    bool in_loss = false;  // false: in a gradient, after it was reduced
  };
  Overflow overflow{};
  std::int64_t counted_targets = 0;  // only the first this many of each sequence; 0: all
  // The content of gradient memory when a step begins: none of it may get into the step's gradients.
  float old_gradients = std::numeric_limits<float>::quiet_NaN();
  std::string describe() const;
};

Setup sweep_setup(const SweepCase& one);

// Global tensors by outside name, assembled from the shards of the ranks.
class Assembled {
 public:
  // Adds this rank's shards of all parts: of the gradients, or of the (master) weights.
  enum class What : std::uint8_t { gradients, weights };
  void add(const TrainingStep& step, Ops& ops, What what);
  // Adds the router state, which follows from choices of experts (ParamSpec::Counts).
  void add_router_state(const TrainingStep& step, Ops& ops);

  const std::map<std::string, std::vector<float>>& tensors() const { return tensors_; }
  bool complete() const;                              // every element was added, with the same value each time
  bool is_part_of(const Assembled& reference) const;  // what was added has the same bits in `reference`
  // The largest difference of a tensor's added elements from `there`; 0: none was added.
  double worst_difference(const std::string& name, const std::vector<float>& there) const;

 private:
  std::mutex mutex_;
  std::map<std::string, std::vector<float>> tensors_;
  std::map<std::string, std::vector<bool>> came_;
  bool contradicted_ = false;
};

struct SweepResult {
  double initial_loss = 0;             // by evaluation, before the first step
  std::vector<double> loss, norm;      // one per step
  std::vector<double> mtp_loss;        // one per step and depth
  std::vector<double> scale;           // loss scale after each step, where there is one
  int skipped = 0;                     // steps, counted by every rank
  Assembled gradients;                 // gradients of the first step
  Assembled weights, router_state;     // after the last
  std::vector<double> aux_losses;      // one per step, all kinds
  std::vector<std::int32_t> choices;   // chosen experts in the last step
  std::uint64_t degrees = 0;           // bits of the degrees that microbatches of dynamic CP had
  bool peaks_as_planned = true;        // on every rank
  std::int64_t allocations = 0;        // after binding, on all ranks
  void (*start_counting)() = nullptr;  // starts counting allocations, where they are counted
  std::int64_t (*stop_counting)() = nullptr;
  std::size_t max_bytes = 0;  // planned, of the largest rank
};

// Runs one rank; all ranks write into one result, except in processes, where each has its own.
void run_rank(const SweepCase& one, RankHandle& rank_handle, int steps, SweepResult& result);

// Runs all ranks as threads.
void run_on_threads(const SweepCase& one, int steps, SweepResult& result);

}  // namespace tera::test
