#pragma once
// Reads the microbatches of a step with dynamic context parallelism (dynamic_cp_scheduler.h). To know the lengths of
// documents, every rank reads all samples of a step; then it packs the rows of the documents that are assigned to it.

#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "tera/data/batching/batch_loader.h"
#include "tera/data/batching/dynamic_cp_scheduler.h"

namespace tera {

class DynamicCpLoader {
 public:
  struct Options {
    DynamicCpOptions scheduler;
    int replica = 0, rank = 0;  // indices of this process: among the replicas, and among the C ranks of its replica
    std::int64_t micro_batch_size = 1;  // sequences of a microbatch in the static assignment
    std::size_t steps = 1;              // that are kept at a time
  };
  // The assignment of one step.
  class Step {
   public:
    explicit Step(const DynamicCpOptions& options) : scheduler_(options) {
      documents_.reserve(options.documents);
      assigned_.reserve(options.documents);
    }
    const DynamicCpScheduler& scheduler() const { return scheduler_; }
    const BatchCounts& counts() const { return counts_; }  // totals of the step, without documents

   private:
    friend class DynamicCpLoader;
    std::int64_t consumed_ = -1;
    std::vector<DocumentSpan> documents_;
    std::vector<AssignedDocument> assigned_;
    BatchCounts counts_;
    DynamicCpScheduler scheduler_;
  };

  explicit DynamicCpLoader(const Options& options);

  // Any thread may call, each with a loader of its own; the first one reads. A step stays until `steps` others were
  // read.
  const Step& step(BatchLoader& loader, std::int64_t consumed, std::int64_t samples);

  // Fills the block of this rank in a microbatch: all rows that the ranks of the block share, k T of them; `buffers`
  // have C T. Returns the part of them that was filled, with as many offsets as there are documents.
  struct Filled {
    BatchSpans rows;
    BatchCounts counts;
  };
  Filled fill(BatchLoader& loader, const Step& step, std::int64_t microbatch, const BatchSpans& buffers) const;

 private:
  Options options_;
  std::mutex mutex_;  // guards steps_ and next_
  std::vector<Step> steps_;
  std::size_t next_ = 0;
};

}  // namespace tera
