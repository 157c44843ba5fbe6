#include "tera/data/index_cache.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <optional>
#include <system_error>
#include <utility>

#include "tera/base/error.h"
#include "tera/base/file.h"
#include "tera/base/hash.h"

namespace tera {
namespace {

// A file is this header, the description padded with blanks to `text_bytes`, then the arrays; all of them are 8-byte
// aligned but the last two.
struct CacheHeader {
  std::array<char, 8> magic{'T', 'E', 'R', 'A', 'G', 'P', 'T', '1'};
  std::uint64_t documents = 0, samples = 0;
  std::uint64_t content_hash = 0;  // hash of the arrays
};
constexpr std::size_t text_bytes = 512;

// FNV-1a over words of eight bytes; the last one is padded with zeros.
std::uint64_t hash_bytes(std::span<const std::byte> bytes, std::uint64_t hash = 0xcbf29ce484222325ULL) {
  for (std::size_t i = 0; i < bytes.size(); i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, std::min<std::size_t>(8, bytes.size() - i));
    hash = (hash ^ word) * 0x100000001b3ULL;
    hash ^= hash >> 29;  // so that high bits of words reach low bits
  }
  return hash;
}

// The arrays in the order of the file.
std::array<std::span<const std::byte>, 4> arrays_of(const GptIndexView& view) {
  return {std::as_bytes(view.starts.position), std::as_bytes(view.starts.offset), std::as_bytes(view.documents),
          std::as_bytes(view.order)};
}

std::uint64_t hash_of(const GptIndexView& view) {
  std::uint64_t hash = hash_bytes({});
  for (const auto& bytes : arrays_of(view)) hash = hash_bytes(bytes, hash);
  return hash;
}

std::string padded(std::string text) {
  require(text.size() <= text_bytes, "a description of {} bytes", text.size());
  text.resize(text_bytes, ' ');
  return text;
}

template <class T>
std::span<const T> take(std::span<const std::byte>& bytes, std::uint64_t count) {
  const std::span<const T> part(reinterpret_cast<const T*>(bytes.data()), count);
  bytes = bytes.subspan(part.size_bytes());
  return part;
}

// Checks that every number is in bounds, so that no sample reads outside the data, whatever the file holds.
bool in_bounds(const GptIndexView& view, PackedArray<std::int32_t> lengths, const GptIndexOptions& options) {
  const auto document_good = [&](std::int32_t i) { return i >= options.first && i < options.last; };
  const auto order_good = [&](std::uint32_t i) { return i < view.order.size(); };
  if (!std::ranges::all_of(view.documents, document_good) || !std::ranges::all_of(view.order, order_good)) return false;
  const std::int64_t extra = options.add_extra_token ? 1 : 0;
  std::int64_t before = 0;
  for (std::size_t i = 0; i < view.starts.position.size() && !view.documents.empty(); ++i) {
    const std::int64_t position = view.starts.position[i], offset = view.starts.offset[i];
    if (position < before || std::cmp_greater_equal(position, view.documents.size())) return false;
    const std::int64_t length = lengths[static_cast<std::size_t>(view.documents[static_cast<std::size_t>(position)])];
    if (offset + extra < 0 || offset > length || (i > 0 && offset + extra > length)) return false;
    before = position;
  }
  return true;
}

// The arrays of a mapped file; nothing if any of its fields is invalid.
std::optional<GptIndexView> view_of(std::span<const std::byte> bytes, const std::string& description,
                                    PackedArray<std::int32_t> lengths, const GptIndexOptions& options) {
  CacheHeader header;
  const auto magic = header.magic;
  if (bytes.size() < sizeof(header) + text_bytes) return {};
  std::memcpy(&header, bytes.data(), sizeof(header));
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + sizeof(header), text_bytes);
  if (header.magic != magic || text != padded(description)) return {};
  const GptEpochs plan = count_epochs(lengths, options);
  const auto samples = static_cast<std::uint64_t>(plan.samples);
  const auto documents = static_cast<std::uint64_t>(plan.epochs * (options.last - options.first));
  if (header.samples != samples || header.documents != documents) return {};
  bytes = bytes.subspan(sizeof(header) + text_bytes);
  if (bytes.size() != (samples + 1) * 12 + documents * 4 + samples * 4) return {};
  GptIndexView view;
  view.starts.position = take<std::int64_t>(bytes, samples + 1);
  view.starts.offset = take<std::int32_t>(bytes, samples + 1);
  view.documents = take<std::int32_t>(bytes, documents);
  view.order = take<std::uint32_t>(bytes, samples);
  if (hash_of(view) != header.content_hash || !in_bounds(view, lengths, options)) return {};
  return view;
}

std::optional<StoredGptIndex> read_index(const std::filesystem::path& path, const std::string& description,
                                         PackedArray<std::int32_t> lengths, const GptIndexOptions& options) {
  if (!path_exists(path)) return {};
  MappedFile file(path);
  const auto view = view_of(file.bytes(), description, lengths, options);
  if (!view) return {};
  return StoredGptIndex(std::move(file), *view);
}

void write_index(const std::filesystem::path& path, const std::string& description, const GptIndexView& view) {
  CacheHeader header;
  header.documents = view.documents.size();
  header.samples = view.order.size();
  header.content_hash = hash_of(view);
  AtomicFile file(path);
  std::uint64_t offset = 0;
  const auto put = [&](std::span<const std::byte> bytes) {
    file.write_at(offset, bytes);
    offset += bytes.size();
  };
  put(std::as_bytes(std::span(&header, 1)));
  const std::string text = padded(description);
  put(std::as_bytes(std::span(text)));
  for (const auto& bytes : arrays_of(view)) put(bytes);
  file.commit();
}

}  // namespace

std::string describe_gpt_index(PackedArray<std::int32_t> lengths, const GptIndexOptions& options) {
  return fmt::format(
      "gpt order 1; lengths {:016x} of {} documents; split {}:{}; samples {}; seq_length {}; seed {}; extra token {}; "
      "drop last {}",
      hash_bytes(lengths.bytes()), lengths.size(), options.first, options.last,
      options.samples ? std::to_string(*options.samples) : "of one epoch", options.seq_length, options.seed,
      options.add_extra_token, options.drop_last_partial);
}

StoredGptIndex make_gpt_index(PackedArray<std::int32_t> lengths, const GptIndexOptions& options,
                              const std::filesystem::path& folder) {
  if (folder.empty()) return StoredGptIndex(build_gpt_index(lengths, options));
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  require_user(!error, "cannot make the folder {} (dataset.data_cache_path): {}", folder.native(), error.message());
  const std::string description = describe_gpt_index(lengths, options);
  const auto path = folder / fmt::format("{:016x}.gpt_index", hash_text(description));
  if (auto stored = read_index(path, description, lengths, options)) return std::move(*stored);
  GptIndexArrays built = build_gpt_index(lengths, options);
  write_index(path, description, built.view());
  // Ranks that map one file share its memory.
  if (auto stored = read_index(path, description, lengths, options)) return std::move(*stored);
  return StoredGptIndex(std::move(built));
}

}  // namespace tera
