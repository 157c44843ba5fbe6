#pragma once
// Turns samples into the rows of a microbatch. The samples consumed so far are the only state: one integer, so a run
// resumes at any step, and every parallel layout sees the same global batch.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "tera/config/sections/model.h"
#include "tera/data/batching/sampler.h"
#include "tera/data/dataset.h"

namespace tera {

// One microbatch on the host, T = micro_batch_size * seq_length rows, sequence after sequence. What its spans are is
// listed in batch_fields.h.
struct BatchSpans {
  std::span<std::int32_t> tokens;     // [T]
  std::span<std::int32_t> targets;    // [T] the next token, negative where it does not count
  std::span<std::int32_t> positions;  // [T] within the sequence
  // [T] index of the sample in the run * seq_length + position in the sequence: unique in a run, seeds dropout.
  std::span<std::int64_t> row_ids;
  // [documents+1], with packed documents: rows where they begin, then T. Before it is filled its capacity is T+1.
  std::span<std::int32_t> offsets{};
  // [depths,T], multi-token prediction (MTP): depth k = 1, 2 ... has at each row the token and the target of the row
  // k further on; token 0 and a negative target where the sequence, or the document, ends before.
  std::span<std::int32_t> mtp_tokens{}, mtp_targets{};

  BatchSpans first(std::size_t rows) const;  // the first rows of every span
};

// A document, or a part of one, in a sample.
struct DocumentSpan {
  std::int64_t position = 0;         // index of the sample in the run
  std::int32_t begin = 0, rows = 0;  // in the sample
};

using MtpTargetCounts = std::array<std::int64_t, max_mtp_layers>;  // unmasked targets, by depth

// What one microbatch holds.
struct BatchCounts {
  std::int64_t targets = 0;  // unmasked ones
  MtpTargetCounts mtp_targets{};
  std::int64_t documents = 0;  // set for packed documents, including empty ones at the end
};

// Numbers of documents that a microbatch of so many rows may have: powers of two, so that a device meets few shapes.
std::vector<std::int64_t> document_counts(std::int64_t rows);

struct BatchOptions {
  std::int64_t seq_length = 0, micro_batch_size = 0, global_batch_size = 0;  // in samples; the largest of the run
  std::int64_t data_rank = 0, data_ranks = 1;                                // this rank among the data-parallel ones
  std::int32_t eod = -1, pad = -1;                                           // negative: none
  bool eod_mask_loss = false;                                                // no loss where the input is eod
  bool reset_position_ids = false;                                           // positions start over after eod
  bool reset_attention_mask = false;                                         // attention does not cross eod
  // Whether tokens or targets are used here. Where not (in a middle pipeline stage) they are left as they are, and
  // samples are not read unless positions follow from them.
  bool needs_ids = true;
  std::int64_t mtp_depths = 0;  // MTP layers
};

// A dataset and the order in which it is read: its own where there is no sampler. Both outlive the loader.
struct BatchSource {
  const Dataset* dataset = nullptr;
  CyclicSampler* sampler = nullptr;
};

class BatchLoader {
 public:
  BatchLoader(const BatchSource& source, const BatchOptions& options);
  BatchLoader(const Dataset& dataset, const BatchOptions& options) : BatchLoader(BatchSource{&dataset}, options) {}
  std::int64_t microbatches() const { return microbatches_; }  // number on this rank in a global batch
  // Microbatch i of the global batch that starts at sample `consumed`.
  BatchCounts fill(std::int64_t consumed, std::int64_t microbatch, const BatchSpans& out);
  // Counts the targets of that whole global batch of `samples`, over all ranks; documents are left out.
  BatchCounts count(std::int64_t consumed, std::int64_t samples);
  // Counts as count() does and appends the documents that hold these targets to the list: each ends with its last
  // target, after which nothing is learned.
  BatchCounts measure(std::int64_t consumed, std::int64_t samples, std::vector<DocumentSpan>& documents);
  // Packs some of these documents one after the other; the rows that are left are padding: documents without targets.
  BatchCounts fill(std::span<const DocumentSpan> documents, std::span<const std::int32_t> which, const BatchSpans& out);
  // Unmasked targets of a global batch: what the loss is divided by.
  std::int64_t counted_targets(std::int64_t consumed, std::int64_t samples) { return count(consumed, samples).targets; }
  std::int64_t counted_targets(std::int64_t consumed) { return counted_targets(consumed, options_.global_batch_size); }

 private:
  bool has_marks() const { return !marks_.empty(); }
  bool reads_samples() const {
    return options_.needs_ids || options_.reset_position_ids || options_.reset_attention_mask;
  }
  void check_sizes(const BatchSpans& out, std::size_t rows) const;
  void read(std::int64_t position);
  std::int32_t target_at(std::size_t row) const;
  bool begins_document(std::size_t row) const;
  std::int64_t fill_row(std::int64_t position, const BatchSpans& row);
  void note_documents(std::size_t first_row);
  void fill_document(const DocumentSpan& document, std::size_t first_row, const BatchSpans& out,
                     BatchCounts& counts) const;
  void fill_padding(std::size_t first_row, const BatchSpans& out);
  std::int64_t write_document_offsets(std::span<std::int32_t> offsets) const;
  template <class Visit>
  void for_each_mtp_depth(const Visit& visit) const;
  void fill_mtp(const BatchSpans& out, std::size_t begin, BatchCounts& counts) const;
  void fill_positions(std::int64_t position, const BatchSpans& row) const;

  BatchSource source_;
  BatchOptions options_;
  std::int64_t microbatches_;
  std::vector<std::int32_t> ids_;     // [S+1] the sample being read
  std::vector<std::uint8_t> marks_;   // [S+1] its marks, where the dataset has some
  std::vector<std::int32_t> starts_;  // first rows of documents in the microbatch being filled
};

}  // namespace tera
