#include "tera/data/batching/context_split.h"

#include <algorithm>
#include <numeric>

#include "tera/base/error.h"

namespace tera {
namespace {

// How many of the first `rows` rows a rank has.
std::int64_t rows_of_rank(std::int64_t rows, std::int64_t ranks, std::int64_t rank) {
  return rows / ranks + (rank < rows % ranks ? 1 : 0);
}

}  // namespace

void split_context(std::span<const std::int32_t> offsets, int ranks, std::span<std::int32_t> rows) {
  const std::int64_t each = std::ssize(rows) / ranks;
  require(ranks > 0 && std::ssize(rows) % ranks == 0 && !offsets.empty() && offsets.front() == 0 &&
              offsets.back() == std::ssize(rows) && std::ranges::is_sorted(offsets),
          "{} rows of {} documents over {} ranks", rows.size(), std::ssize(offsets) - 1, ranks);
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    const std::int64_t begin = offsets[i], end = offsets[i + 1];
    std::int64_t next = begin;
    const auto add_piece = [&](std::int64_t rank, bool front) {
      const std::int64_t first = rows_of_rank(begin, ranks, rank);
      const std::int64_t number = rows_of_rank(end, ranks, rank) - first, in_front = (number + 1) / 2;
      const std::int64_t at = rank * each + first + (front ? 0 : in_front);
      const auto piece =
          rows.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(front ? in_front : number - in_front));
      std::iota(piece.begin(), piece.end(), static_cast<std::int32_t>(next));
      next += std::ssize(piece);
    };
    for (int rank = 0; rank < ranks; ++rank) add_piece(rank, true);
    for (int rank = ranks - 1; rank >= 0; --rank) add_piece(rank, false);
  }
}

ContextParallelSplit::ContextParallelSplit(const Options& options) : options_(options), local_(local_sizes()) {
  if (options.ranks == 1) return;
  for (std::int64_t i = 0; i <= options.sequences; ++i)
    sequences_.push_back(static_cast<std::int32_t>(i * options.seq_length));
  const auto all = static_cast<std::size_t>(options.sequences * options.seq_length);
  for (auto* of_all : {&rows_, &cp_order_, &in_document_, &cp_order_in_document_}) of_all->resize(all);
  cp_order_row_ids_.resize(all);
  if (options.packed) offsets_.resize((all + 1) * static_cast<std::size_t>(options.ranks));
}

// Only inputs that are split need memory here.
BatchSizes ContextParallelSplit::local_sizes() const {
  const std::int64_t all = options_.sequences * options_.seq_length;
  return {.rows = options_.ranks > 1 ? all / options_.ranks : 0, .mtp_depths = options_.mtp_depths, .all_rows = 0};
}

void ContextParallelSplit::note_documents(std::span<const std::int32_t> offsets) {
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i)
    for (std::int32_t row = offsets[i]; row < offsets[i + 1]; ++row)
      in_document_[static_cast<std::size_t>(row)] = row - offsets[i];
  if (!options_.packed) return;
  offsets_used_ = 0;
  for (int rank = 0; rank < options_.ranks; ++rank)
    for (const std::int32_t begin : offsets)
      offsets_[offsets_used_++] = static_cast<std::int32_t>(rows_of_rank(begin, options_.ranks, rank));
}

BatchSpans ContextParallelSplit::local_rows(const BatchSpans& all) {
  if (options_.ranks == 1) return all;
  const auto documents = options_.packed ? std::span<const std::int32_t>(all.offsets) : sequences_;
  split_context(documents, options_.ranks, rows_);
  note_documents(documents);
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const auto row = static_cast<std::size_t>(rows_[i]);
    cp_order_[row] = static_cast<std::int32_t>(i);
    cp_order_in_document_[i] = in_document_[row];
    cp_order_row_ids_[i] = all.row_ids[row];
  }
  const std::size_t count = rows_.size() / static_cast<std::size_t>(options_.ranks);
  const auto local = std::span(rows_).subspan(static_cast<std::size_t>(options_.rank) * count, count);
  BatchSpans mine;
  for_each_batch_field([&](const auto& field) {
    const auto& from = all.*field.host;
    mine.*field.host = from;
    if (!field.split) return;
    const std::size_t depths = from.size() / rows_.size();
    const auto to = (local_.spans().*field.host).first(depths * count);
    for (std::size_t depth = 0; depth < depths; ++depth)
      for (std::size_t i = 0; i < count; ++i)
        to[depth * count + i] = from[depth * rows_.size() + static_cast<std::size_t>(local[i])];
    mine.*field.host = to;
  });
  return mine;
}

}  // namespace tera
