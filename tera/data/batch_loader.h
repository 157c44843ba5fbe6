#pragma once
// Turns samples into the rows of a microbatch. Which samples follows from one integer, the samples consumed so far, so
// a run resumes at any step and every layout sees the same global batch.

#include <cstdint>
#include <span>
#include <vector>

#include "tera/data/dataset.h"
#include "tera/data/sampler.h"

namespace tera {

// One microbatch, T = micro_batch_size * seq_length rows, sequence after sequence.
struct BatchSpans {
  std::span<std::int32_t> tokens;     // [T]
  std::span<std::int32_t> targets;    // [T] the next token, negative where it does not count
  std::span<std::int32_t> positions;  // [T] within the sequence
  std::span<std::int64_t>
      row_ids;  // [T] place in the run * seq_length + place in the sequence: keys dropout, unique in a run
};

struct BatchOptions {
  std::int64_t seq_length = 0, micro_batch_size = 0, global_batch_size = 0;  // in samples; the largest
  std::int64_t data_rank = 0, data_ranks = 1;                                // this rank among the data-parallel ones
  std::int32_t eod = -1, pad = -1;                                           // negative: none
  bool eod_mask_loss = false;                                                // no loss where the input is eod
  bool reset_position_ids = false;                                           // positions start over after eod
  // Whether anybody looks at tokens or targets. Where not (in the middle of a pipeline) they are left as they are, and
  // samples are not read unless positions follow from them.
  bool needs_ids = true;
};

// What is read, and in which order: that of the dataset where there is no sampler. Both outlive who reads.
struct BatchSource {
  const Dataset* dataset = nullptr;
  CyclicSampler* sampler = nullptr;
};

class BatchLoader {
 public:
  BatchLoader(const BatchSource& source, const BatchOptions& options);
  BatchLoader(const Dataset& dataset, const BatchOptions& options) : BatchLoader(BatchSource{&dataset}, options) {}
  std::int64_t microbatches() const { return microbatches_; }  // of this rank, per global batch
  // Microbatch i of the global batch that starts at sample `consumed`. Returns how many of its targets count.
  std::int64_t fill(std::int64_t consumed, std::int64_t microbatch, const BatchSpans& out);
  // Unmasked targets of that whole global batch of `samples`, over all ranks: what the loss is divided by.
  std::int64_t counted_targets(std::int64_t consumed, std::int64_t samples);
  std::int64_t counted_targets(std::int64_t consumed) { return counted_targets(consumed, options_.global_batch_size); }

 private:
  bool reads_samples() const { return options_.needs_ids || options_.reset_position_ids; }
  void read(std::int64_t place);
  std::int32_t target_at(std::size_t place) const;
  std::int64_t fill_row(std::int64_t place, const BatchSpans& row);
  void fill_places(std::int64_t place, const BatchSpans& row) const;

  BatchSource source_;
  BatchOptions options_;
  std::int64_t microbatches_;
  std::vector<std::int32_t> ids_;  // [S+1] the sample being read
};

}  // namespace tera
