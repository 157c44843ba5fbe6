#include "tera/data/indexed/indexed_writer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "tera/base/error.h"

namespace tera {
namespace {

constexpr std::size_t chunk_bytes = std::size_t{1} << 20;

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

template <class T>
bool holds(std::int32_t id) {
  if constexpr (std::is_floating_point_v<T>)
    return static_cast<std::int32_t>(static_cast<T>(id)) == id;
  else
    return std::in_range<T>(id);
}

// Appends to a file piece by piece.
class Appender {
 public:
  explicit Appender(AtomicFile& file) : file_(file) {}
  void put(std::span<const std::byte> bytes) {
    file_.write_at(offset_, bytes);
    offset_ += bytes.size();
  }

 private:
  AtomicFile& file_;
  std::uint64_t offset_ = 0;
};

std::vector<std::byte> header_bytes(TokenType type, std::uint64_t sequences, std::uint64_t entries) {
  std::vector<std::byte> out;
  const auto add = [&out](const auto* data, std::size_t count) {
    const auto bytes = std::as_bytes(std::span(data, count));
    out.insert(out.end(), bytes.begin(), bytes.end());
  };
  add(IndexedHeader::magic.data(), IndexedHeader::magic.size());
  add(&IndexedHeader::version, 1);
  add(&type, 1);
  add(&sequences, 1);
  add(&entries, 1);
  return out;
}

}  // namespace

IndexedWriter::IndexedWriter(const std::string& prefix, TokenType type, Modes modes)
    : prefix_(prefix),
      index_(prefix + ".idx"),
      data_(prefix + ".bin"),
      type_(type),
      stores_modes_(modes),
      lengths_(index_.path().parent_path()),
      document_ends_(index_.path().parent_path()),
      modes_(index_.path().parent_path()) {
  check_targets();
  pending_.reserve(2 * chunk_bytes);
}

void IndexedWriter::put(std::span<const std::byte> bytes) {
  if (bytes.size() >= chunk_bytes) {
    flush();
    data_.write_at(flushed_, bytes);
    flushed_ += bytes.size();
    return;
  }
  pending_.insert(pending_.end(), bytes.begin(), bytes.end());
  if (pending_.size() >= chunk_bytes) flush();
}

void IndexedWriter::flush() {
  data_.write_at(flushed_, pending_);
  flushed_ += pending_.size();
  pending_.clear();
}

void IndexedWriter::put_length(std::int32_t length, std::int8_t mode) {
  lengths_.put(bytes_of(length));
  if (stores_modes_ == Modes::stored) modes_.put(bytes_of(mode));
  ++sequences_;
}

void IndexedWriter::add_sequence(std::span<const std::int32_t> tokens, std::int8_t mode) {
  require_user(tokens.size() <= std::numeric_limits<std::int32_t>::max(),
               "a sequence of {} tokens; the format allows 2147483647", tokens.size());
  visit_token_type(type_, [&](auto like) {
    using T = decltype(like);
    for (const std::int32_t id : tokens)
      require_user(holds<T>(id), "token id {} does not fit {}, the number type of {}", id, name_of(type_),
                   data_.path().native());
    for (std::size_t begin = 0; begin < tokens.size();) {  // in pieces, so that long sequences need no buffer
      std::array<T, 4096> piece;
      const std::size_t count = std::min(piece.size(), tokens.size() - begin);
      std::transform(tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                     tokens.begin() + static_cast<std::ptrdiff_t>(begin + count), piece.begin(),
                     [](std::int32_t id) { return static_cast<T>(id); });
      put(std::as_bytes(std::span(piece).first(count)));
      begin += count;
    }
  });
  put_length(static_cast<std::int32_t>(tokens.size()), mode);
}

void IndexedWriter::end_document() {
  last_end_ = sequences_;
  document_ends_.put(bytes_of(last_end_));
}

void IndexedWriter::add_document(std::span<const std::int32_t> tokens) {
  add_sequence(tokens);
  end_document();
}

void IndexedWriter::add_stored(std::span<const std::byte> tokens, std::span<const std::int32_t> lengths,
                               std::span<const std::uint32_t> document_ends) {
  require(stores_modes_ == Modes::none, "{}: documents without modes", prefix_);
  put(tokens);
  lengths_.put(std::as_bytes(lengths));
  for (const std::uint32_t end : document_ends) {
    last_end_ = sequences_ + end;
    document_ends_.put(bytes_of(last_end_));
  }
  sequences_ += std::ssize(lengths);
}

void IndexedWriter::append(const IndexedDataset& other, const std::function<void()>& meanwhile) {
  require_user(other.token_type() == type_, "{} holds {} and {} holds {}; only datasets of one type can be joined",
               other.prefix(), name_of(other.token_type()), data_.path().native(), name_of(type_));
  require_user(stores_modes_ == Modes::none || other.modes().size() == other.lengths().size(), "{} has no modes",
               other.prefix());
  const std::int64_t before = sequences();
  std::uint64_t forgotten = data_bytes();
  for (std::int64_t i = 0; i < other.sequences(); ++i) {
    put(other.stored(i));
    const auto at = static_cast<std::size_t>(i);
    put_length(other.lengths()[at], stores_modes_ == Modes::stored ? other.modes()[at] : std::int8_t{0});
    if (data_bytes() - forgotten < 64 * chunk_bytes) continue;
    other.forget_pages();
    forgotten = data_bytes();
    if (meanwhile) meanwhile();
  }
  for (std::size_t i = 1; i < other.document_index().size(); ++i) {
    last_end_ = before + other.document_index()[i];
    document_ends_.put(bytes_of(last_end_));
  }
  other.forget_pages();
}

void IndexedWriter::write_index() {
  Appender out(index_);
  const auto put_all = [&out](std::span<const std::byte> piece) { out.put(piece); };
  out.put(header_bytes(type_, static_cast<std::uint64_t>(sequences_), static_cast<std::uint64_t>(documents()) + 1));
  lengths_.replay(put_all);
  const auto width = static_cast<std::int64_t>(size_of(type_));
  std::vector<std::int64_t> pointers;
  std::int64_t pointer = 0;
  lengths_.replay([&](std::span<const std::byte> piece) {
    const PackedArray<std::int32_t> lengths(piece);
    pointers.resize(lengths.size());
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      pointers[i] = pointer;
      pointer += lengths[i] * width;
    }
    out.put(std::as_bytes(std::span(pointers)));
  });
  out.put(bytes_of(std::int64_t{0}));  // before the first document
  document_ends_.replay(put_all);
  modes_.replay(put_all);
}

void IndexedWriter::complete() {
  require(last_end_ == sequences_, "{}: the last document was not ended", data_.path().native());
  flush();
  write_index();
  data_.sync();
  index_.sync();
}

void IndexedWriter::check_targets() const {
  for (const AtomicFile* file : {&data_, &index_}) {
    std::error_code ignored;  // a path without stat() cannot be written either, and the error of writing says why
    require_user(!std::filesystem::is_directory(file->path(), ignored), "cannot write {}: a folder has that name",
                 file->path().native());
  }
}

void IndexedWriter::take_back() {
  std::error_code ignored;  // something else went wrong before
  for (const AtomicFile* file : {&index_, &data_})
    if (file->committed()) std::filesystem::remove(file->path(), ignored);
}

void IndexedWriter::publish() {
  IndexedWriter* const self = this;
  publish({&self, 1});
}

// An index that exists always belongs to its data: replaced indices are removed first, new ones are renamed last.
void IndexedWriter::publish(std::span<IndexedWriter* const> writers) {
  for (const IndexedWriter* writer : writers) writer->check_targets();
  try {
    for (IndexedWriter* writer : writers) std::filesystem::remove(writer->index_.path());
    for (IndexedWriter* writer : writers) writer->data_.commit();
    for (IndexedWriter* writer : writers) writer->index_.commit();
  } catch (...) {
    for (IndexedWriter* writer : writers) writer->take_back();
    throw;
  }
}

}  // namespace tera
