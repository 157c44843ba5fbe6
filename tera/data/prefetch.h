#pragma once
// Microbatches that are ready when they are asked for: threads of its own read them ahead, in a ring of buffers made
// once. The order is that of the jobs, whoever reads what; nothing is allocated after the start; and what reading a
// microbatch throws is thrown to whom asks for it, so a run ends as if it had read the data itself.

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "tera/data/batch_jobs.h"
#include "tera/data/batch_loader.h"
#include "tera/data/dealer.h"

namespace tera {

class Prefetch {
 public:
  struct Options {
    BatchOptions batch;
    int workers = 0;                        // threads; with none, each microbatch is read when it is asked for
    int ready = 1;                          // microbatches kept ready, where there are threads
    std::optional<Dealer::Options> deal{};  // where documents of a step are dealt out anew; how many steps follows
  };
  struct Loaded {
    BatchSpans rows;                        // none behind the last of a step that is dealt
    std::int64_t own_targets = 0;           // of this microbatch that count
    std::int64_t all_targets = 0;           // of the whole global batch that count; known in its first microbatch
    TargetsAhead own_ahead{}, all_ahead{};  // the same of rows ahead
    const DocumentDeal* deal = nullptr;     // of the step, where there is one; stays as long as the rows
  };

  Prefetch(const std::vector<BatchSource>& sources, std::unique_ptr<BatchJobs> jobs, const Options& options);
  Prefetch(const Prefetch&) = delete;
  Prefetch& operator=(const Prefetch&) = delete;
  ~Prefetch();  // lets threads finish the microbatch at hand

  // The next microbatch; it stays until the next call.
  const Loaded& next();
  // How long next() has waited (or read, without threads) since this was asked before.
  double take_waited_ms();

 private:
  using Loaders = std::vector<BatchLoader>;  // one for each source

  struct Slot {
    Slot(std::size_t rows, const BatchOptions& options);
    std::vector<std::int32_t> tokens, targets, positions, offsets, ahead_tokens, ahead_targets;
    std::vector<std::int64_t> row_ids;
    BatchSpans room;
    Loaded loaded;
    std::exception_ptr error;
    bool ready = false;
  };

  Slot& slot(std::uint64_t number) { return slots_[number % slots_.size()]; }
  void read(const BatchJob& job, Loaders& loaders, Slot& slot);
  void read_dealt(const BatchJob& job, BatchLoader& loader, Slot& slot);
  void work(Loaders& loaders);
  Slot& wait_for_next();
  Slot& read_next();

  std::unique_ptr<BatchJobs> jobs_;
  std::vector<Slot> slots_;
  std::vector<Loaders> loaders_;  // of each worker, or of the caller
  std::unique_ptr<Dealer> dealer_;

  std::mutex mutex_;  // guards all below but the threads, and what `ready` of a slot says
  std::condition_variable room_, arrival_;
  std::uint64_t started_ = 0, handed_out_ = 0, given_back_ = 0;  // microbatches
  bool no_more_ = false, stopping_ = false;
  double waited_ms_ = 0;  // the caller's alone
  std::vector<std::thread> workers_;
};

}  // namespace tera
