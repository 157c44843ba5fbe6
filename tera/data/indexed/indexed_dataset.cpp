#include "tera/data/indexed/indexed_dataset.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <system_error>
#include <vector>

#include "tera/base/error.h"
#include "tera/base/file.h"
#include "tera/base/joined.h"

namespace tera {
namespace {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "the files are little-endian and mapped as they are");

template <class T>
T number_at(std::span<const std::byte> bytes, std::size_t offset) {
  return PackedArray<T>(bytes.subspan(offset, sizeof(T)))[0];
}

template <class... Args>
[[noreturn]] void refuse(const MappedFile& file, std::string_view field, fmt::format_string<Args...> format,
                         Args&&... args) {
  fail_user("{}: {}: {}", file.path().string(), field, fmt::format(format, std::forward<Args>(args)...));
}

// Finds the prefixes PREFIX_<key>_document of files that exist.
std::vector<std::string> outputs_of(const std::string& prefix) {
  const fs::path folder = fs::path(prefix).parent_path();
  const std::string begin = fs::path(prefix).filename().string() + "_", end = "_document.idx";
  std::vector<std::string> found;
  std::error_code error;  // a folder that cannot be read gives no advice
  fs::directory_iterator files(folder.empty() ? "." : folder, error);
  for (; !error && files != fs::directory_iterator(); files.increment(error)) {
    const std::string name = files->path().filename().string();
    if (name.size() > begin.size() + end.size() && name.starts_with(begin) && name.ends_with(end))
      found.push_back((folder / name.substr(0, name.size() - 4)).string());
  }
  std::ranges::sort(found);
  return found;
}

}  // namespace

std::string dataset_prefix(const std::string& path) {
  if (path_exists(path + ".idx")) return path;
  const bool file = path.ends_with(".bin") || path.ends_with(".idx");
  std::string prefix = file ? path.substr(0, path.size() - 4) : path;
  if (file && path_exists(prefix + ".idx")) return prefix;
  if (const auto found = outputs_of(prefix); !found.empty())
    fail_user("{}.idx: No such file or directory; there is {}", prefix, joined(found, ", "));
  if (path.ends_with(".jsonl") && path_exists(path))
    fail_user(
        "{}: text, not a dataset of tokens; `tera preprocess --input {} --output-prefix P` makes one, "
        "P_text_document",
        path, path);
  return prefix;
}

IndexedDataset::IndexedDataset(const std::string& prefix, Modes modes)
    : prefix_(prefix), index_(prefix + ".idx"), data_(prefix + ".bin") {
  map_arrays(modes);
  check_sequences();
  check_documents();
}

void IndexedDataset::map_arrays(Modes modes) {
  const auto bytes = index_.bytes();
  if (bytes.size() < IndexedHeader::bytes)
    refuse(index_, "header", "the file has {} bytes and a header {}", bytes.size(), IndexedHeader::bytes);
  if (std::memcmp(bytes.data(), IndexedHeader::magic.data(), IndexedHeader::magic.size()) != 0)
    refuse(index_, "magic", "the file does not begin with MMIDIDX, so it is no index of a .bin file");
  const auto version = number_at<std::uint64_t>(bytes, 9);
  if (version != IndexedHeader::version) refuse(index_, "version", "{} is not known; only 1 is", version);
  const auto code = number_at<std::uint8_t>(bytes, 17);
  if (code < 1 || code > 8) refuse(index_, "dtype", "code {} is not one of 1 to 8", code);
  type_ = static_cast<TokenType>(code);

  const auto sequences = number_at<std::uint64_t>(bytes, 18), entries = number_at<std::uint64_t>(bytes, 26);
  check_size(modes, sequences, entries);
  std::size_t offset = IndexedHeader::bytes;
  const auto take = [&](std::uint64_t count, std::size_t width) {
    const auto part = bytes.subspan(offset, count * width);
    offset += part.size();
    return part;
  };
  lengths_ = PackedArray<std::int32_t>(take(sequences, 4));
  pointers_ = PackedArray<std::int64_t>(take(sequences, 8));
  document_index_ = PackedArray<std::int64_t>(take(entries, 8));
  if (modes == Modes::stored) modes_ = PackedArray<std::int8_t>(take(sequences, 1));
}

// Counts are compared by division, so that none can overflow.
void IndexedDataset::check_size(Modes modes, std::uint64_t sequences, std::uint64_t entries) const {
  const std::uint64_t available = index_.size() - IndexedHeader::bytes;
  const std::uint64_t each = modes == Modes::stored ? 13 : 12;
  if (sequences > available / each)
    refuse(index_, "sequence count", "{} sequences do not fit into a file of {} bytes: it is cut short or damaged",
           sequences, index_.size());
  const std::uint64_t rest = available - sequences * each;
  if (entries > rest / 8)
    refuse(index_, "document count", "{} entries do not fit into a file of {} bytes: it is cut short or damaged",
           entries, index_.size());
  if (entries == 0) refuse(index_, "document count", "no entries; even without documents there is one");
  const std::uint64_t over = rest - entries * 8;
  if (over == 0) return;
  if (modes == Modes::none && over == sequences)
    refuse(index_, "sequence modes", "the index has them (data of several kinds), which cannot be read here");
  refuse(index_, "size", "{} bytes too many for {} sequences and {} document entries", over, sequences, entries);
}

void IndexedDataset::check_sequences() {
  const auto width = static_cast<std::int64_t>(size_of(type_));
  const auto bin_bytes = static_cast<std::int64_t>(data_.size());
  std::int64_t used = 0;
  for (std::size_t i = 0; i < lengths_.size(); ++i) {
    const std::int64_t length = lengths_[i], pointer = pointers_[i];
    if (length < 0) refuse(index_, "sequence lengths", "sequence {} has length {}", i, length);
    if (pointer < 0 || pointer > bin_bytes || length > (bin_bytes - pointer) / width)
      refuse(index_, "sequence pointers",
             "sequence {} ({} tokens of {} at byte {}) is not inside {}, which has {} bytes", i, length, name_of(type_),
             pointer, data_.path().string(), bin_bytes);
    if (length > std::numeric_limits<std::int64_t>::max() - tokens_)
      refuse(index_, "sequence lengths", "their sum overflows");
    used = std::max(used, pointer + length * width);
    tokens_ += length;
  }
  if (used != bin_bytes)
    refuse(data_, "size", "{} bytes, but the {} sequences of the index (dtype {}) end at byte {}", bin_bytes,
           lengths_.size(), name_of(type_), used);
}

void IndexedDataset::check_documents() const {
  std::int64_t before = 0;
  for (std::size_t i = 0; i < document_index_.size(); ++i) {
    const std::int64_t entry = document_index_[i];
    if (i == 0 && entry != 0) refuse(index_, "document index", "it begins with {} instead of 0", entry);
    if (entry < before)
      refuse(index_, "document index", "entry {} is {}, below the one before it, {}", i, entry, before);
    before = entry;
  }
  if (before != sequences())
    refuse(index_, "document index", "it ends with {}, and there are {} sequences", before, sequences());
}

std::span<const std::byte> IndexedDataset::stored(std::int64_t sequence) const {
  require(sequence >= 0 && sequence < sequences(), "sequence {} is not one of {}", sequence, sequences());
  const auto i = static_cast<std::size_t>(sequence);
  return data_.bytes().subspan(static_cast<std::size_t>(pointers_[i]),
                               static_cast<std::size_t>(lengths_[i]) * size_of(type_));
}

void IndexedDataset::read(std::int64_t sequence, std::int64_t offset, std::int64_t vocab_size,
                          std::span<std::int32_t> out) const {
  const auto bytes = stored(sequence);
  const std::size_t width = size_of(type_);
  require(offset >= 0 && static_cast<std::size_t>(offset) + out.size() <= bytes.size() / width,
          "tokens {} to {} of sequence {}, which has {}", offset, static_cast<std::size_t>(offset) + out.size(),
          sequence, bytes.size() / width);
  visit_token_type(type_, [&](auto like) {
    using T = decltype(like);
    const PackedArray<T> ids(bytes.subspan(static_cast<std::size_t>(offset) * width, out.size() * width));
    for (std::size_t i = 0; i < out.size(); ++i) {
      const T id = ids[i];
      // Written so that a float that is no number fails too.
      if (!(id >= T{0} && static_cast<double>(id) < static_cast<double>(vocab_size))) [[unlikely]]
        fail_user("{}: token {} of sequence {} is {}, outside the vocabulary of {} (model.vocab_size)",
                  data_.path().string(), offset + static_cast<std::int64_t>(i), sequence, id, vocab_size);
      out[i] = static_cast<std::int32_t>(id);
    }
  });
}

}  // namespace tera
