#pragma once
// Turns samples into the rows of a microbatch. Which samples follows from one integer, the samples consumed so far, so
// a run resumes at any step and every layout sees the same global batch.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "tera/config/model.h"
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
  // [documents+1], with packed documents: rows where they begin, then T. To be filled it has room for T+1.
  std::span<std::int32_t> offsets{};
  // [depths,T], where a model predicts further ahead: depth k = 1, 2 ... has at each row the token and the target of
  // the row k further on; token 0 and a negative target where the sequence, or the document, ends before.
  std::span<std::int32_t> ahead_tokens{}, ahead_targets{};

  BatchSpans first(std::size_t rows) const;  // of all, where only so many are used
};

// A document, or a part of one, in a sample.
struct DocumentPlace {
  std::int64_t place = 0;            // of the sample
  std::int32_t begin = 0, rows = 0;  // in it
};

using TargetsAhead = std::array<std::int64_t, most_mtp_layers>;  // that count, by depth

// What one microbatch holds.
struct BatchCounts {
  std::int64_t targets = 0;  // that count
  TargetsAhead ahead{};
  std::int64_t documents = 0;  // with packed documents; empty ones at the end included
};

// Documents of which a microbatch of so many rows is said to have: powers of two, so that a device meets few shapes.
std::vector<std::int64_t> document_counts(std::int64_t rows);

struct BatchOptions {
  std::int64_t seq_length = 0, micro_batch_size = 0, global_batch_size = 0;  // in samples; the largest
  std::int64_t data_rank = 0, data_ranks = 1;                                // this rank among the data-parallel ones
  std::int32_t eod = -1, pad = -1;                                           // negative: none
  bool eod_mask_loss = false;                                                // no loss where the input is eod
  bool reset_position_ids = false;                                           // positions start over after eod
  bool reset_attention_mask = false;                                         // so do documents
  // Whether anybody looks at tokens or targets. Where not (in the middle of a pipeline) they are left as they are, and
  // samples are not read unless positions follow from them.
  bool needs_ids = true;
  std::int64_t depths = 0;  // of rows ahead
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
  // Microbatch i of the global batch that starts at sample `consumed`.
  BatchCounts fill(std::int64_t consumed, std::int64_t microbatch, const BatchSpans& out);
  // Of that whole global batch of `samples`, over all ranks; documents are left out.
  BatchCounts count(std::int64_t consumed, std::int64_t samples);
  // The same, and which documents hold these targets: each up to the last of its own, behind which nothing is learned.
  // They are added to the list.
  BatchCounts measure(std::int64_t consumed, std::int64_t samples, std::vector<DocumentPlace>& documents);
  // Some of these documents one after the other; what is left of the rows has no target, in documents of its own.
  BatchCounts fill(std::span<const DocumentPlace> documents, std::span<const std::int32_t> which,
                   const BatchSpans& out);
  // Its unmasked targets: what the loss is divided by.
  std::int64_t counted_targets(std::int64_t consumed, std::int64_t samples) { return count(consumed, samples).targets; }
  std::int64_t counted_targets(std::int64_t consumed) { return counted_targets(consumed, options_.global_batch_size); }

 private:
  bool has_marks() const { return !marks_.empty(); }
  bool reads_samples() const {
    return options_.needs_ids || options_.reset_position_ids || options_.reset_attention_mask;
  }
  void read(std::int64_t place);
  std::int32_t target_at(std::size_t place) const;
  bool begins_document(std::size_t place) const;
  std::int64_t fill_row(std::int64_t place, const BatchSpans& row);
  void note_documents(std::size_t first_row);
  void fill_document(const DocumentPlace& document, std::size_t first_row, const BatchSpans& out,
                     BatchCounts& counts) const;
  void fill_rest(std::size_t first_row, const BatchSpans& out);
  std::int64_t hand_out_documents(std::span<std::int32_t> offsets) const;
  template <class See>
  void for_each_ahead(const See& see) const;
  void fill_ahead(const BatchSpans& out, std::size_t begin, BatchCounts& counts) const;
  void fill_places(std::int64_t place, const BatchSpans& row) const;

  BatchSource source_;
  BatchOptions options_;
  std::int64_t microbatches_;
  std::vector<std::int32_t> ids_;     // [S+1] the sample being read
  std::vector<std::uint8_t> marks_;   // [S+1] of it, where there are such
  std::vector<std::int32_t> starts_;  // of documents in the microbatch being filled
};

}  // namespace tera
