#include "tera/data/indexed_writer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "tera/base/error.h"

namespace tera {
namespace {

constexpr std::size_t chunk_bytes = std::size_t{1} << 20;

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

template <class T>
bool holds(std::int32_t id) {
  if constexpr (std::is_floating_point_v<T>)
    return static_cast<std::int32_t>(static_cast<T>(id)) == id;
  else
    return std::in_range<T>(id);
}

// The end of a file, written piece by piece.
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
    : index_(prefix + ".idx"), data_(prefix + ".bin"), type_(type), stores_modes_(modes) {
  pending_.reserve(2 * chunk_bytes);
}

void IndexedWriter::put(std::span<const std::byte> bytes) {
  pending_.insert(pending_.end(), bytes.begin(), bytes.end());
  if (pending_.size() >= chunk_bytes) flush();
}

void IndexedWriter::flush() {
  data_.write_at(flushed_, pending_);
  flushed_ += pending_.size();
  pending_.clear();
}

void IndexedWriter::add_sequence(std::span<const std::int32_t> tokens, std::int8_t mode) {
  require_user(tokens.size() <= std::numeric_limits<std::int32_t>::max(),
               "a sequence of {} tokens; the format allows 2147483647", tokens.size());
  visit_token_type(type_, [&](auto like) {
    using T = decltype(like);
    for (const std::int32_t id : tokens)
      require_user(holds<T>(id), "token id {} does not fit {}, the number type of {}", id, name_of(type_),
                   data_.path().native());
    for (std::size_t begin = 0; begin < tokens.size();) {  // in pieces, so that long sequences need no room
      std::array<T, 4096> piece;
      const std::size_t count = std::min(piece.size(), tokens.size() - begin);
      std::transform(tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                     tokens.begin() + static_cast<std::ptrdiff_t>(begin + count), piece.begin(),
                     [](std::int32_t id) { return static_cast<T>(id); });
      put(std::as_bytes(std::span(piece).first(count)));
      begin += count;
    }
  });
  lengths_.push_back(static_cast<std::int32_t>(tokens.size()));
  if (stores_modes_ == Modes::stored) modes_.push_back(mode);
}

void IndexedWriter::end_document() { document_index_.push_back(sequences()); }

void IndexedWriter::add_document(std::span<const std::int32_t> tokens) {
  add_sequence(tokens);
  end_document();
}

void IndexedWriter::append(const IndexedDataset& other) {
  require_user(other.token_type() == type_, "{} holds {} and {} holds {}; only datasets of one type can be joined",
               other.prefix(), name_of(other.token_type()), data_.path().native(), name_of(type_));
  require_user(stores_modes_ == Modes::none || other.modes().size() == other.lengths().size(), "{} has no modes",
               other.prefix());
  const std::int64_t before = sequences();
  for (std::int64_t i = 0; i < other.sequences(); ++i) {
    put(other.stored(i));
    lengths_.push_back(other.lengths()[static_cast<std::size_t>(i)]);
    if (stores_modes_ == Modes::stored) modes_.push_back(other.modes()[static_cast<std::size_t>(i)]);
  }
  for (std::size_t i = 1; i < other.document_index().size(); ++i)
    document_index_.push_back(before + other.document_index()[i]);
}

void IndexedWriter::write_index() {
  Appender out(index_);
  out.put(header_bytes(type_, lengths_.size(), document_index_.size()));
  out.put(bytes_of(lengths_));
  const auto width = static_cast<std::int64_t>(size_of(type_));
  std::vector<std::int64_t> pointers;
  pointers.reserve(std::min(lengths_.size(), chunk_bytes));
  std::int64_t pointer = 0;
  for (const std::int32_t length : lengths_) {
    pointers.push_back(pointer);
    pointer += length * width;
    if (pointers.size() < chunk_bytes) continue;
    out.put(bytes_of(pointers));
    pointers.clear();
  }
  out.put(bytes_of(pointers));
  out.put(bytes_of(document_index_));
  out.put(bytes_of(modes_));
}

// The tokens first: an index that is there always has its data.
void IndexedWriter::finish() {
  require(document_index_.back() == sequences(), "{}: the last document was not ended", data_.path().native());
  flush();
  write_index();
  data_.commit();
  index_.commit();
}

}  // namespace tera
