#include "tera/checkpoint/rank_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <future>

#include "tera/base/checksum.h"
#include "tera/base/error.h"
#include "tera/checkpoint/safetensors.h"
#include "tera/checkpoint/safetensors_header.h"
#include "tera/ops/ops.h"

namespace tera {
namespace {

[[noreturn]] void fail_to_write(const std::filesystem::path& path, int reason) {
  fail_user("cannot write {}: {}", path.string(), std::generic_category().message(reason));
}

}  // namespace

std::string piece_name(const std::string& tensor, const Shape& shape, const TensorSlice& slice) {
  if (is_full(slice, shape)) return tensor;
  return fmt::format("{}@{}:{}-{}@{}", tensor, slice.split, slice.begin, slice.end, slice.from);
}

std::vector<std::int64_t> piece_shape(const Shape& shape, const TensorSlice& slice) {
  std::vector<std::int64_t> dims(shape.dim.begin(), shape.dim.begin() + shape.rank);
  if (slice.elements() != range_elements(slice, shape)) return {slice.elements()};
  dims[static_cast<std::size_t>(slice.split)] = slice.end - slice.begin;
  return dims;
}

std::string RankFile::name(int rank) { return fmt::format("rank_{:05d}.safetensors", rank); }

RankFile::RankFile(std::span<const StateTensor> tensors, std::vector<StatePiece> pieces) : pieces_(std::move(pieces)) {
  std::ranges::stable_sort(pieces_, std::ranges::greater{},
                           [](const StatePiece& piece) { return size_of(piece.data.dtype); });
  SafetensorsHeader header;
  header.metadata["format"] = "pt";
  std::uint64_t end = 0;
  for (const StatePiece& piece : pieces_) {
    const StateTensor& tensor = tensors[piece.tensor];
    const std::uint64_t begin = end;
    end += piece.data.bytes();
    offsets_.push_back(begin);
    header.entries.push_back({piece_name(tensor.name, tensor.shape, piece.slice),
                              std::string(safetensors_dtype(tensor.dtype)), piece_shape(tensor.shape, piece.slice),
                              begin, end});
  }
  const std::string text = format_safetensors_header(header);
  const std::uint64_t length = (text.size() + 7) / 8 * 8;  // aligns the data to 8 bytes
  header_.resize(sizeof(length) + length, ' ');
  std::memcpy(header_.data(), &length, sizeof(length));
  std::ranges::copy(text, header_.begin() + sizeof(length));
  for (std::uint64_t& offset : offsets_) offset += header_.size();
  bytes_ = header_.size() + end;
}

void RankFile::copy(Ops& ops, std::uint64_t begin, std::span<std::byte> host) const {
  const std::uint64_t end = begin + host.size();
  if (begin < header_.size()) {
    const auto part = std::as_bytes(std::span(header_)).subspan(begin);
    std::ranges::copy(part.first(std::min(part.size(), host.size())), host.begin());
  }
  auto piece = static_cast<std::size_t>(std::ranges::upper_bound(offsets_, begin) - offsets_.begin());
  if (piece > 0) --piece;
  for (; piece < pieces_.size() && offsets_[piece] < end; ++piece) {
    const Tensor& data = pieces_[piece].data;
    const std::uint64_t first = std::max(begin, offsets_[piece]), last = std::min(end, offsets_[piece] + data.bytes());
    if (first >= last) continue;
    const auto width = static_cast<std::uint64_t>(size_of(data.dtype));
    ops.to_host_later(data.rows(static_cast<std::int64_t>((first - offsets_[piece]) / width),
                                static_cast<std::int64_t>((last - offsets_[piece]) / width)),
                      host.subspan(first - begin, last - first));
  }
  ops.finish(ops.record());
}

StreamFile::StreamFile(std::filesystem::path path, std::uint64_t bytes) : path_(std::move(path)), bytes_(bytes) {
  constexpr int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
  file_ = FileDescriptor(::open(path_.c_str(), flags | O_DIRECT, 0666));
  direct_ = static_cast<bool>(file_);
  if (!file_ && errno == EINVAL) {  // no direct I/O on this file system; the file may exist now
    ::unlink(path_.c_str());
    file_ = FileDescriptor(::open(path_.c_str(), flags, 0666));
  }
  if (!file_) fail_to_write(path_, errno);
  // Allocates the file, so that a full disk is reported now, if the file system supports that.
  if (bytes > 0 && ::fallocate(file_.get(), 0, 0, static_cast<off_t>(bytes)) != 0 && errno == ENOSPC) {
    ::unlink(path_.c_str());
    fail_to_write(path_, ENOSPC);
  }
}

StreamFile::~StreamFile() {
  if (!finished_) ::unlink(path_.c_str());
}

std::uint32_t StreamFile::write(Make make) {
  std::uint32_t checksum = 0;
  std::future<void> appending;  // its destructor waits for the thread after an exception
  for (std::uint64_t begin = 0; begin < bytes_; begin += chunk_bytes) {
    const auto next = make(begin, static_cast<std::size_t>(std::min<std::uint64_t>(chunk_bytes, bytes_ - begin)));
    checksum = crc32c(next, checksum);
    if (appending.valid()) appending.get();
    appending = std::async(std::launch::async, [this, next] { append(next); });
  }
  if (appending.valid()) appending.get();
  sync();
  return checksum;
}

void StreamFile::append(std::span<const std::byte> bytes) {
  const std::size_t blocks = direct_ ? bytes.size() / direct_block_bytes * direct_block_bytes : bytes.size();
  write_fully(bytes.first(blocks));
  if (blocks == bytes.size()) return;
  write_through_cache();  // the end of the file is no full block
  write_fully(bytes.subspan(blocks));
}

void StreamFile::write_through_cache() {
  direct_ = false;
  const int flags = ::fcntl(file_.get(), F_GETFL);
  if (flags < 0 || ::fcntl(file_.get(), F_SETFL, flags & ~O_DIRECT) != 0) fail_to_write(path_, errno);
}

void StreamFile::write_fully(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(written_));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EINVAL && direct_) {  // stricter alignment rules, or an earlier short write
      write_through_cache();
      continue;
    }
    if (n <= 0) fail_to_write(path_, n < 0 ? errno : ENOSPC);
    written_ += static_cast<std::uint64_t>(n);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

void StreamFile::sync() {
  if (::ftruncate(file_.get(), static_cast<off_t>(written_)) != 0) fail_to_write(path_, errno);
  if (::fsync(file_.get()) != 0 && errno != EINVAL) fail_to_write(path_, errno);
  file_.close();
  finished_ = true;
}

}  // namespace tera
