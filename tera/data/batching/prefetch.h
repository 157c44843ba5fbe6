#pragma once
// Prefetches microbatches: worker threads read them before they are needed, into a ring of buffers made once. The order
// is that of the jobs, whichever thread reads; nothing is allocated after the start; and what reading a microbatch
// throws is thrown by the next() that returns it, so a run ends as if it had read the data itself.

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "tera/data/batching/batch_fields.h"
#include "tera/data/batching/batch_jobs.h"
#include "tera/data/batching/dynamic_cp_loader.h"

namespace tera {

class Prefetch {
 public:
  struct Options {
    BatchOptions batch;
    int workers = 0;                                       // threads; with none, next() reads
    int ready = 1;                                         // microbatches kept ready, where there are threads
    std::optional<DynamicCpLoader::Options> dynamic_cp{};  // set for dynamic context parallelism; `steps` is computed
  };
  struct Loaded {
    BatchSpans rows;                 // empty after the last microbatch of a step with dynamic context parallelism
    std::int64_t local_targets = 0;  // unmasked ones of this microbatch
    std::int64_t all_targets = 0;    // unmasked ones of the global batch; known in its first microbatch
    MtpTargetCounts local_mtp{}, all_mtp{};         // unmasked MTP targets of each
    const DynamicCpScheduler* scheduler = nullptr;  // set for dynamic context parallelism
  };

  Prefetch(const std::vector<BatchSource>& sources, std::unique_ptr<BatchJobs> jobs, const Options& options);
  Prefetch(const Prefetch&) = delete;
  Prefetch& operator=(const Prefetch&) = delete;
  ~Prefetch();  // lets threads finish the microbatch that they read

  // The next microbatch; it stays until the next call.
  const Loaded& next();
  // How long next() has waited (or read, without threads) since the last call of this.
  double take_waited_ms();

 private:
  using Loaders = std::vector<BatchLoader>;  // one for each source

  struct Slot {
    explicit Slot(const BatchSizes& sizes) : buffers(sizes) {}
    BatchBuffers buffers;
    Loaded loaded;
    std::exception_ptr error;
    bool ready = false;
  };

  Slot& slot(std::uint64_t number) { return slots_[number % slots_.size()]; }
  void read(const BatchJob& job, Loaders& loaders, Slot& slot);
  void read_assigned(const BatchJob& job, BatchLoader& loader, Slot& slot);
  void work(Loaders& loaders);
  Slot& wait_for_next();
  Slot& read_next();

  std::unique_ptr<BatchJobs> jobs_;
  std::vector<Slot> slots_;
  std::vector<Loaders> loaders_;  // one set per worker, or that of the caller
  std::unique_ptr<DynamicCpLoader> dynamic_cp_loader_;

  std::mutex mutex_;  // guards all below but the threads, and `ready` of each slot
  std::condition_variable slot_free_, slot_ready_;
  std::uint64_t started_ = 0, returned_ = 0, released_ = 0;  // microbatches
  bool no_more_ = false, stopping_ = false;
  double waited_ms_ = 0;  // used by the caller only
  std::vector<std::thread> workers_;
};

}  // namespace tera
