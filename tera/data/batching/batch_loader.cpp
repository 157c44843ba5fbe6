#include "tera/data/batching/batch_loader.h"

#include <algorithm>
#include <bit>
#include <optional>

#include "tera/base/error.h"
#include "tera/data/batching/batch_fields.h"

namespace tera {
namespace {

std::int64_t count_microbatches(const BatchOptions& options) {
  const std::int64_t together = options.micro_batch_size * options.data_ranks;
  require(options.seq_length > 0 && options.micro_batch_size > 0 && options.data_ranks > 0 && options.data_rank >= 0 &&
              options.data_rank < options.data_ranks && options.global_batch_size > 0 &&
              options.global_batch_size % together == 0,
          "a global batch of {} does not divide into microbatches of {} over {} ranks", options.global_batch_size,
          options.micro_batch_size, options.data_ranks);
  return options.global_batch_size / together;
}

std::int64_t round_up_documents(std::int64_t documents, std::int64_t rows) {
  return std::min(static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(documents))), rows);
}

}  // namespace

std::vector<std::int64_t> document_counts(std::int64_t rows) {
  std::vector<std::int64_t> counts{1};
  while (counts.back() < rows) counts.push_back(round_up_documents(counts.back() + 1, rows));
  return counts;
}

BatchLoader::BatchLoader(const BatchSource& source, const BatchOptions& options)
    : source_(source),
      options_(options),
      microbatches_(count_microbatches(options)),
      ids_(static_cast<std::size_t>(options.seq_length + 1)) {
  require(options.mtp_depths >= 0 && options.mtp_depths <= max_mtp_layers, "{} depths of rows ahead",
          options.mtp_depths);
  if (source.dataset->has_marks()) marks_.resize(ids_.size());
  if (options.reset_attention_mask)
    starts_.reserve(static_cast<std::size_t>(options.micro_batch_size * options.seq_length));
}

// The target of one row: none after the end of the data, for padding, and (if asked) for what follows a document.
std::int32_t BatchLoader::target_at(std::size_t row) const {
  const std::int32_t token = ids_[row], next = ids_[row + 1];
  const bool masked = token < 0 || next < 0 || (options_.pad >= 0 && next == options_.pad) ||
                      (options_.eod_mask_loss && token == options_.eod) ||
                      (has_marks() && !(marks_[row + 1] & Dataset::counts));
  return masked ? -1 : next;
}

// The end-of-document token belongs to the document that it ends; every sequence begins a new one.
bool BatchLoader::begins_document(std::size_t row) const {
  if (row == 0) return true;
  return has_marks() ? (marks_[row] & Dataset::begins) != 0 : ids_[row - 1] == options_.eod;
}

// Errors of the data name the sample, by which it can be looked at (tera dataset --samples).
void BatchLoader::read(std::int64_t position) {
  const std::int64_t sample = source_.sampler ? source_.sampler->at(position) : position;
  try {
    source_.dataset->sample(sample, ids_);
    if (has_marks()) source_.dataset->marks(sample, marks_);
  } catch (const UserError& error) {
    fail_user("sample {}: {}", sample, error.what());
  }
}

std::int64_t BatchLoader::fill_row(std::int64_t position, const BatchSpans& row) {
  fill_positions(position, row);
  if (!reads_samples()) return 0;
  read(position);
  const bool resets = options_.reset_position_ids || has_marks();
  std::int64_t counted = 0;
  std::int32_t next_position = 0;
  for (std::size_t i = 0; i + 1 < ids_.size(); ++i) {
    const std::int32_t target = target_at(i);
    if (resets && begins_document(i)) next_position = 0;
    row.tokens[i] = std::max(ids_[i], 0);
    row.targets[i] = target;
    counted += target >= 0 ? 1 : 0;
    row.positions[i] = next_position++;
  }
  return counted;
}

// Calls visit(depth, row, target_row) for every row of the current sample at every MTP depth; no target_row where it
// would lie beyond the sequence or, with an attention mask per document, beyond the document.
template <class Visit>
void BatchLoader::for_each_mtp_depth(const Visit& visit) const {
  const std::size_t rows = ids_.size() - 1;
  std::size_t end = rows;
  for (std::size_t row = rows; row-- > 0;) {
    if (options_.reset_attention_mask && row + 1 < rows && begins_document(row + 1)) end = row + 1;
    for (std::size_t depth = 1; depth <= static_cast<std::size_t>(options_.mtp_depths); ++depth)
      visit(depth, row, row + depth < end ? std::optional(row + depth) : std::nullopt);
  }
}

void BatchLoader::fill_mtp(const BatchSpans& out, std::size_t begin, BatchCounts& counts) const {
  const std::size_t all = out.tokens.size();
  for_each_mtp_depth([&](std::size_t depth, std::size_t row, std::optional<std::size_t> seen) {
    const std::size_t at = (depth - 1) * all + begin + row;
    out.mtp_tokens[at] = seen ? std::max(ids_[*seen], 0) : 0;
    out.mtp_targets[at] = seen ? target_at(*seen) : -1;
    counts.mtp_targets[depth - 1] += out.mtp_targets[at] >= 0 ? 1 : 0;
  });
}

void BatchLoader::fill_positions(std::int64_t position, const BatchSpans& row) const {
  for (std::size_t i = 0; i < row.positions.size(); ++i) {
    row.positions[i] = static_cast<std::int32_t>(i);
    row.row_ids[i] = position * options_.seq_length + static_cast<std::int64_t>(i);
  }
}

BatchCounts BatchLoader::fill(std::int64_t consumed, std::int64_t microbatch, const BatchSpans& out) {
  const auto length = static_cast<std::size_t>(options_.seq_length);
  const std::size_t rows = static_cast<std::size_t>(options_.micro_batch_size) * length;
  require(consumed >= 0 && microbatch >= 0 && microbatch < microbatches_, "microbatch {} is not one of {}", microbatch,
          microbatches_);
  check_sizes(out, rows);
  const std::int64_t first =
      consumed + (microbatch * options_.data_ranks + options_.data_rank) * options_.micro_batch_size;
  starts_.clear();
  BatchCounts counts;
  for (std::int64_t i = 0; i < options_.micro_batch_size; ++i) {
    const std::size_t begin = static_cast<std::size_t>(i) * length;
    counts.targets += fill_row(first + i, {out.tokens.subspan(begin, length), out.targets.subspan(begin, length),
                                           out.positions.subspan(begin, length), out.row_ids.subspan(begin, length)});
    if (options_.mtp_depths > 0 && reads_samples()) fill_mtp(out, begin, counts);
    if (options_.reset_attention_mask) note_documents(begin);
  }
  if (options_.reset_attention_mask) counts.documents = write_document_offsets(out.offsets);
  return counts;
}

void BatchLoader::note_documents(std::size_t first_row) {
  for (std::size_t i = 0; i + 1 < ids_.size(); ++i)
    if (begins_document(i)) starts_.push_back(static_cast<std::int32_t>(first_row + i));
}

std::int64_t BatchLoader::write_document_offsets(std::span<std::int32_t> offsets) const {
  const auto rows = static_cast<std::int32_t>(offsets.size() - 1);
  const std::int64_t documents = round_up_documents(std::ssize(starts_), rows);
  std::ranges::fill(offsets.first(static_cast<std::size_t>(documents + 1)), rows);
  std::ranges::copy(starts_, offsets.begin());
  return documents;
}

BatchSpans BatchSpans::first(std::size_t rows) const {
  BatchSpans part;
  for_each_batch_field([&](const auto& field) {
    const auto& all = this->*field.host;
    if (all.empty()) return;
    const std::size_t depths = field.per == PerField::mtp_row ? all.size() / tokens.size() : 1;
    part.*field.host = all.first(depths * rows + (field.per == PerField::document ? 1 : 0));
  });
  return part;
}

// Offsets that are not asked for may be given all the same.
void BatchLoader::check_sizes(const BatchSpans& out, std::size_t rows) const {
  const BatchSizes sizes{.rows = static_cast<std::int64_t>(rows),
                         .mtp_depths = options_.mtp_depths,
                         .packed = options_.reset_attention_mask};
  for_each_batch_field([&](const auto& field) {
    if (field.per == PerField::document && !sizes.packed) return;
    const std::int64_t needed = sizes.elements(field.per, field.split), given = std::ssize(out.*field.host);
    require(given == needed, "a microbatch of {} rows has {} {}, and {} are given", rows, needed, field.name, given);
  });
}

BatchCounts BatchLoader::measure(std::int64_t consumed, std::int64_t samples, std::vector<DocumentSpan>& documents) {
  BatchCounts counts;
  const auto rows = static_cast<std::int32_t>(options_.seq_length);
  for (std::int64_t i = 0; i < samples; ++i) {
    read(consumed + i);
    DocumentSpan here{.position = consumed + i};
    for (std::int32_t row = 0; row < rows; ++row) {
      if (begins_document(static_cast<std::size_t>(row))) {
        if (here.rows > 0) documents.push_back(here);
        here.begin = row;
        here.rows = 0;
      }
      if (target_at(static_cast<std::size_t>(row)) < 0) continue;
      here.rows = row + 1 - here.begin;
      ++counts.targets;
    }
    if (here.rows > 0) documents.push_back(here);
    if (options_.mtp_depths == 0) continue;
    for_each_mtp_depth([&](std::size_t depth, std::size_t /*row*/, std::optional<std::size_t> seen) {
      counts.mtp_targets[depth - 1] += seen && target_at(*seen) >= 0 ? 1 : 0;
    });
  }
  return counts;
}

// Copies one document of the current sample; positions and row ids are those that its rows have in the sample.
void BatchLoader::fill_document(const DocumentSpan& document, std::size_t first_row, const BatchSpans& out,
                                BatchCounts& counts) const {
  const std::size_t all = out.tokens.size(), begin = static_cast<std::size_t>(document.begin),
                    rows = static_cast<std::size_t>(document.rows),
                    depths = static_cast<std::size_t>(options_.mtp_depths);
  const bool resets = options_.reset_position_ids || has_marks();
  for (std::size_t i = 0; i < rows; ++i) {
    const std::size_t at = first_row + i;
    out.tokens[at] = std::max(ids_[begin + i], 0);
    out.targets[at] = target_at(begin + i);
    out.positions[at] = static_cast<std::int32_t>(resets ? i : begin + i);
    out.row_ids[at] = document.position * options_.seq_length + static_cast<std::int64_t>(begin + i);
    counts.targets += out.targets[at] >= 0 ? 1 : 0;
    for (std::size_t depth = 1; depth <= depths; ++depth) {
      const std::size_t mtp_row = (depth - 1) * all + at;
      const bool inside = i + depth < rows;
      out.mtp_tokens[mtp_row] = inside ? std::max(ids_[begin + i + depth], 0) : 0;
      out.mtp_targets[mtp_row] = inside ? target_at(begin + i + depth) : -1;
      counts.mtp_targets[depth - 1] += out.mtp_targets[mtp_row] >= 0 ? 1 : 0;
    }
  }
}

// Padding rows cost attention time, too: the shorter their documents, the less. Their tokens repeat those of the rows
// before, so that MoE routes them to experts as it does others.
void BatchLoader::fill_padding(std::size_t first_row, const BatchSpans& out) {
  constexpr std::size_t rows_of_document = 64;
  const std::size_t all = out.tokens.size();
  for (std::size_t at = first_row; at < all; ++at) {
    const std::size_t in_document = (at - first_row) % rows_of_document;
    if (in_document == 0) starts_.push_back(static_cast<std::int32_t>(at));
    out.tokens[at] = first_row > 0 ? out.tokens[at - first_row] : 0;
    out.targets[at] = -1;
    out.positions[at] = static_cast<std::int32_t>(in_document) % static_cast<std::int32_t>(options_.seq_length);
    out.row_ids[at] = 0;
    for (std::size_t mtp_row = at; mtp_row < out.mtp_tokens.size(); mtp_row += all) {
      out.mtp_tokens[mtp_row] = 0;
      out.mtp_targets[mtp_row] = -1;
    }
  }
}

BatchCounts BatchLoader::fill(std::span<const DocumentSpan> documents, std::span<const std::int32_t> which,
                              const BatchSpans& out) {
  const std::size_t rows = out.tokens.size();
  require(options_.reset_attention_mask, "documents are packed only where attention stays inside them");
  check_sizes(out, rows);
  starts_.clear();
  BatchCounts counts;
  std::size_t next = 0;
  std::int64_t last_read = -1;
  for (const std::int32_t i : which) {
    const DocumentSpan& document = documents[static_cast<std::size_t>(i)];
    require(document.rows > 0 && next + static_cast<std::size_t>(document.rows) <= rows,
            "a document of {} rows behind {} of {}", document.rows, next, rows);
    if (document.position != last_read) read(document.position);
    last_read = document.position;
    starts_.push_back(static_cast<std::int32_t>(next));
    fill_document(document, next, out, counts);
    next += static_cast<std::size_t>(document.rows);
  }
  fill_padding(next, out);
  counts.documents = write_document_offsets(out.offsets);
  return counts;
}

BatchCounts BatchLoader::count(std::int64_t consumed, std::int64_t samples) {
  BatchCounts counts;
  const bool all_count = !source_.dataset->has_gaps() && options_.pad < 0 && !options_.eod_mask_loss;
  if (all_count && (options_.mtp_depths == 0 || !options_.reset_attention_mask)) {
    counts.targets = samples * options_.seq_length;
    for (std::int64_t depth = 1; depth <= options_.mtp_depths; ++depth)
      counts.mtp_targets[static_cast<std::size_t>(depth - 1)] =
          samples * std::max<std::int64_t>(options_.seq_length - depth, 0);
    return counts;
  }
  for (std::int64_t i = 0; i < samples; ++i) {
    read(consumed + i);
    for (std::size_t row = 0; row + 1 < ids_.size(); ++row) counts.targets += target_at(row) >= 0 ? 1 : 0;
    for_each_mtp_depth([&](std::size_t depth, std::size_t /*row*/, std::optional<std::size_t> seen) {
      counts.mtp_targets[depth - 1] += seen && target_at(*seen) >= 0 ? 1 : 0;
    });
  }
  return counts;
}

}  // namespace tera
