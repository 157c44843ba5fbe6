#pragma once
// The zigzag split of context parallelism: which rows of a microbatch each of the cp ranks has. Of every document a
// rank has two pieces of about 1 / (2 cp), one from the front and its mirror image from the back. So all ranks have as
// many rows, and under a causal mask equal work. With 4 ranks, a document of 8 pieces:
//
//   rows     0   1   2   3   4   5   6   7
//   rank     0   1   2   3   3   2   1   0
//
// Lengths need not divide: ranks take the rows that are left over round-robin, on through all documents of a
// microbatch. Of the first b rows rank r has b / cp, and one more if r < b % cp; so where cp divides the length of
// sequences, every rank has as many rows of each.
//
// The context-parallel order (cp_order) lists the rows of rank 0, then those of rank 1, ...

#include <cstdint>
#include <span>
#include <vector>

#include "tera/data/batching/batch_fields.h"

namespace tera {

// offsets [documents+1]: where documents begin, and the end; cp divides it. rows [end]: all rows in context-parallel
// order, ascending within a rank.
void split_context(std::span<const std::int32_t> offsets, int ranks, std::span<std::int32_t> rows);

// The rows of microbatches that one rank has; a single rank has all rows, and nothing is copied. Memory is made once.
class ContextParallelSplit {
 public:
  struct Options {
    std::int64_t sequences = 0, seq_length = 0;
    int ranks = 1, rank = 0;
    bool packed = false;          // microbatches say where documents begin
    std::int64_t mtp_depths = 0;  // MTP layers
  };
  explicit ContextParallelSplit(const Options& options);

  // Takes all rows of a microbatch. What is returned, and what the calls below say of it, stays until the next call.
  BatchSpans local_rows(const BatchSpans& all);
  std::span<const std::int32_t> cp_order_rows() const { return rows_; }  // [all rows], as split_context makes them
  std::span<const std::int32_t> cp_order() const { return cp_order_; }   // for each row its index in cp_order_rows()
  // Distances of rows from the begin of their document: in the order of the microbatch, and in that of cp_order_rows().
  std::span<const std::int32_t> positions() const { return in_document_; }
  std::span<const std::int32_t> cp_order_positions() const { return cp_order_in_document_; }
  std::span<const std::int64_t> cp_order_row_ids() const { return cp_order_row_ids_; }
  // Where documents begin among the local rows of each rank, then the end: [ranks (documents + 1)].
  std::span<const std::int32_t> cp_order_offsets() const { return std::span(offsets_).first(offsets_used_); }

 private:
  void note_documents(std::span<const std::int32_t> offsets);
  BatchSizes local_sizes() const;

  Options options_;
  std::vector<std::int32_t> sequences_;  // offsets of sequences, where documents are not packed
  std::vector<std::int32_t> rows_, cp_order_, in_document_, cp_order_in_document_, offsets_;
  std::vector<std::int64_t> cp_order_row_ids_;
  std::size_t offsets_used_ = 0;
  BatchBuffers local_;
};

}  // namespace tera
