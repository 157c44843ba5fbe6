#include "tera/data/preprocess/preprocess_block.h"

#include <fmt/core.h>
#include <simdjson.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "tera/base/error.h"

namespace tera {
namespace {

constexpr std::size_t kept_bytes = std::size_t{4} << 20;  // a buffer that grew larger is not kept

template <class T>
void append_as(std::span<const std::int32_t> ids, std::vector<std::byte>& out) {
  const std::size_t before = out.size();
  out.resize(before + ids.size() * sizeof(T));
  std::byte* to = out.data() + before;
  std::int32_t lowest = 0, highest = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    lowest = std::min(lowest, ids[i]);
    highest = std::max(highest, ids[i]);
    const T narrow = static_cast<T>(ids[i]);
    std::memcpy(to + i * sizeof(T), &narrow, sizeof(T));
  }
  require(lowest >= 0 && std::in_range<T>(highest), "a token id ({}) does not fit the type of the file",
          lowest < 0 ? lowest : highest);
}

void note_bad(BlockJob& job, std::int64_t line, std::string reason) {
  ++job.bad_lines;
  if (job.bad.size() < BlockJob::max_reported_lines) job.bad.push_back({line, std::move(reason)});
}

}  // namespace

void BlockJob::clear() {
  for (StoredDocuments& key : documents) {
    key.tokens.clear();
    if (key.tokens.capacity() > kept_bytes) key.tokens.shrink_to_fit();
    key.lengths.clear();
    key.ends.clear();
  }
  lines = bad_lines = 0;
  bad.clear();
  if (block.memory() > kept_bytes) block.drop_memory();
}

BlockEncoder::BlockEncoder(const PreprocessOptions& options, const Tokenizer& tokenizer)
    : options_(options),
      type_(token_type_for(tokenizer.vocab_size())),
      eod_(tokenizer.eod()),
      encoder_(tokenizer.make_encoder()),
      parser_(options.keys),
      counts_(options.keys.size()) {}

std::string BlockEncoder::overlong() const {
  return fmt::format("the line is longer than {} bytes, the most that is read", options_.max_line_bytes);
}

void BlockEncoder::encode(BlockJob& job) {
  job.documents.resize(options_.keys.size());
  if (job.block.overlong) {
    job.lines = 1;
    note_bad(job, 0, overlong());
    return;
  }
  const std::string_view text = job.block.text();
  const bool valid = simdjson::validate_utf8(text.data(), text.size());  // checking many lines at once is faster
  for_each_line(text, [&](std::string_view line) {
    if (!job.bad.empty() && !options_.skip_bad_lines) return;
    const std::int64_t number = job.lines++;
    try {
      if (!valid) check_utf8(line);
      encode_line(line, job);
    } catch (const UserError& error) {
      note_bad(job, number, error.what());
    }
  });
  parser_.trim();
  if (ids_.capacity() * sizeof(std::int32_t) > kept_bytes) std::vector<std::int32_t>().swap(ids_);
}

// All keys are encoded before any is stored: a bad line leaves nothing.
void BlockEncoder::encode_line(std::string_view line, BlockJob& job) {
  if (line.size() > options_.max_line_bytes) fail_user("{}", overlong());
  parser_.parse(line);
  ids_.clear();
  lengths_.clear();
  for (std::size_t key = 0; key < counts_.size(); ++key) counts_[key] = encode_key(key);
  std::span<const std::int32_t> ids(ids_), lengths(lengths_);
  for (std::size_t key = 0; key < counts_.size(); ++key) {
    store(job.documents[key], ids.first(counts_[key].tokens), lengths.first(counts_[key].sequences));
    ids = ids.subspan(counts_[key].tokens);
    lengths = lengths.subspan(counts_[key].sequences);
  }
}

// Texts without tokens are no sequences, and a document of such texts gets no end of document: Megatron-LM's rules.
BlockEncoder::Counts BlockEncoder::encode_key(std::size_t key) {
  const std::size_t first_token = ids_.size(), first_sequence = lengths_.size();
  for (const std::string_view text : parser_.texts(key)) {
    const std::size_t before = ids_.size();
    encoder_->encode(text, ids_);
    if (ids_.size() > before) lengths_.push_back(static_cast<std::int32_t>(ids_.size() - before));
  }
  if (options_.append_eod && ids_.size() > first_token) {
    ids_.push_back(eod_);
    ++lengths_.back();
  }
  return {ids_.size() - first_token, lengths_.size() - first_sequence};
}

void BlockEncoder::store(StoredDocuments& documents, std::span<const std::int32_t> ids,
                         std::span<const std::int32_t> lengths) {
  if (type_ == TokenType::u16)
    append_as<std::uint16_t>(ids, documents.tokens);
  else
    append_as<std::int32_t>(ids, documents.tokens);
  documents.lengths.insert(documents.lengths.end(), lengths.begin(), lengths.end());
  documents.ends.push_back(static_cast<std::uint32_t>(documents.lengths.size()));
}

}  // namespace tera
