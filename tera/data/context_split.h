#pragma once
// Which rows of a microbatch each of several context-parallel ranks has: of every document two pieces of about 1 / (2
// cp), one from the front and its mirror image from the back. So all ranks have as many rows, and under a causal mask
// as much to do. With 4 ranks, a document of 8 pieces:
//
//   rows     0   1   2   3   4   5   6   7
//   rank     0   1   2   3   3   2   1   0
//
// Lengths need not divide: ranks take the rows that are left over in turns, on through all documents of a microbatch.
// Of the first b rows rank r has b / cp, and one more if r < b % cp; so where cp divides the length of sequences, every
// rank has as many rows of each.

#include <cstdint>
#include <span>
#include <vector>

#include "tera/data/batch_loader.h"

namespace tera {

// offsets [documents+1]: where documents begin, and the end; cp divides it. rows [end]: those of rank 0, ascending,
// then those of rank 1, ...
void split_context(std::span<const std::int32_t> offsets, int ranks, std::span<std::int32_t> rows);

// Own rows of microbatches on one rank; with one rank they are all rows, and nothing is copied. Memory is made once.
class ContextCut {
 public:
  struct Options {
    std::int64_t sequences = 0, seq_length = 0;
    int ranks = 1, rank = 0;
    bool packed = false;      // microbatches say where documents begin
    std::int64_t depths = 0;  // of rows ahead, which microbatches may have
  };
  explicit ContextCut(const Options& options);

  // All rows of a microbatch. What is returned, and what the calls below say of it, stays until the next.
  BatchSpans own(const BatchSpans& all);
  std::span<const std::int32_t> at_places() const { return rows_; }  // [all rows], as split_context makes them
  std::span<const std::int32_t> places() const { return places_; }   // where among these each row is
  // How far rows stand from the begin of their document, in order and as at_places().
  std::span<const std::int32_t> positions() const { return in_document_; }
  std::span<const std::int32_t> at_places_positions() const { return at_places_in_document_; }
  std::span<const std::int64_t> at_places_row_ids() const { return at_places_row_ids_; }
  // Where documents begin among the own rows of each rank, then the end: [ranks (documents + 1)].
  std::span<const std::int32_t> at_places_offsets() const { return std::span(offsets_).first(offsets_used_); }

 private:
  void note_documents(std::span<const std::int32_t> offsets);

  Options options_;
  std::vector<std::int32_t> sequences_;  // offsets, where documents are not packed
  std::vector<std::int32_t> rows_, places_, in_document_, at_places_in_document_, offsets_;
  std::vector<std::int32_t> tokens_, targets_, positions_, ahead_tokens_, ahead_targets_;
  std::vector<std::int64_t> row_ids_, at_places_row_ids_;
  std::size_t offsets_used_ = 0;
};

}  // namespace tera
