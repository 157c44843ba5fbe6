#include "tera/data/preprocess/compressed_input.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "tera/base/error.h"

namespace tera {
namespace {

constexpr std::size_t buffer_bytes = std::size_t{1} << 18;
constexpr int poll_milliseconds = 100;

constexpr std::string_view gzip_magic = "\x1f\x8b", zstd_magic = "\x28\xb5\x2f\xfd";
constexpr std::string_view xz_magic("\xfd\x37zXZ\0", 6), bzip2_magic = "BZh", bzip2_block = "1AY&SY";
constexpr std::size_t head_bytes = 10;  // enough to recognise every format

// Formats that are recognised, but not supported; `head` may be empty.
void refuse_unsupported(const std::string& path, std::string_view head) {
  const bool xz = path.ends_with(".xz") || head.starts_with(xz_magic);
  const bool bzip2 = path.ends_with(".bz2") || (head.starts_with(bzip2_magic) && head.size() == head_bytes &&
                                                head.ends_with(bzip2_block));  // a digit stands between
  if (xz || bzip2)
    fail_user(
        "{0}: {1} data cannot be read, only plain, gzip and zstd; decompress it first ({1} -dc FILE), to a file "
        "or into a pipe",
        path, xz ? "xz" : "bzip2");
}

class Gunzip final : public Decompressor {
 public:
  explicit Gunzip(const std::string& path) : path_(path) {
    constexpr int largest_window = 15, gzip_header = 16;
    require(::inflateInit2(&stream_, largest_window + gzip_header) == Z_OK, "zlib cannot start");
  }
  Gunzip(const Gunzip&) = delete;
  Gunzip& operator=(const Gunzip&) = delete;
  ~Gunzip() override { ::inflateEnd(&stream_); }

  std::size_t run(std::span<const char>& in, std::span<char> out) override {
    if (between_members_ && members_ > 0) {  // archives may be padded with zeros
      const auto used = std::ranges::find_if(in, [](char c) { return c != 0; });
      in = in.subspan(static_cast<std::size_t>(used - in.begin()));
    }
    if (in.empty() && between_members_) return 0;
    if (between_members_ && members_ > 0) ::inflateReset(&stream_);
    between_members_ = false;
    return inflate_some(in, out);
  }
  bool may_end() const override { return between_members_; }

 private:
  std::size_t inflate_some(std::span<const char>& in, std::span<char> out) {
    constexpr std::size_t max_chunk = std::size_t{1} << 30;  // zlib counts in 32 bits
    const std::size_t given = std::min(in.size(), max_chunk), capacity = std::min(out.size(), max_chunk);
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in.data()));
    stream_.avail_in = static_cast<uInt>(given);
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = static_cast<uInt>(capacity);
    const int status = ::inflate(&stream_, Z_NO_FLUSH);
    if (status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR)
      fail_user("{}: the gzip data is damaged ({})", path_, stream_.msg != nullptr ? stream_.msg : "zlib says no more");
    in = in.subspan(given - stream_.avail_in);
    if (status == Z_STREAM_END) {
      between_members_ = true;
      ++members_;
    }
    return capacity - stream_.avail_out;
  }

  std::string path_;
  z_stream stream_{};
  bool between_members_ = true;
  std::uint64_t members_ = 0;
};

class Unzstd final : public Decompressor {
 public:
  explicit Unzstd(const std::string& path) : path_(path), stream_(::ZSTD_createDStream()) {
    require(stream_ != nullptr, "zstd cannot start");
  }
  Unzstd(const Unzstd&) = delete;
  Unzstd& operator=(const Unzstd&) = delete;
  ~Unzstd() override { ::ZSTD_freeDStream(stream_); }

  std::size_t run(std::span<const char>& in, std::span<char> out) override {
    if (in.empty() && between_frames_) return 0;
    ZSTD_inBuffer source{in.data(), in.size(), 0};
    ZSTD_outBuffer target{out.data(), out.size(), 0};
    const std::size_t status = ::ZSTD_decompressStream(stream_, &target, &source);
    if (::ZSTD_isError(status) != 0)
      fail_user("{}: the zstd data cannot be read ({})", path_, ::ZSTD_getErrorName(status));
    in = in.subspan(source.pos);
    between_frames_ = status == 0;
    return target.pos;
  }
  bool may_end() const override { return between_frames_; }

 private:
  std::string path_;
  ZSTD_DStream* stream_;
  bool between_frames_ = true;
};

[[noreturn]] void fail_to(std::string_view what, const std::string& path) {
  fail_user("cannot {} {}: {}", what, path, std::generic_category().message(errno));
}

struct OpenedFile {
  FileDescriptor descriptor;  // empty for standard input
  int fd = STDIN_FILENO;
  struct stat info {};
};

// Opens without blocking: a named pipe without a writer must not hang the program where it cannot be interrupted.
OpenedFile open_input(const std::string& path) {
  OpenedFile file;
  if (path != CompressedInput::standard_input) {
    file.descriptor = FileDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!file.descriptor) fail_to("open", path);
    file.fd = file.descriptor.get();
  }
  if (::fstat(file.fd, &file.info) != 0) fail_to("read", path);
  require_user(!S_ISDIR(file.info.st_mode), "{} is not a file but a folder", path);
  refuse_unsupported(path, {});
  return file;
}

bool starts_with(std::span<const char> bytes, std::string_view start) {
  return std::string_view(bytes.data(), bytes.size()).starts_with(start);
}

}  // namespace

CompressedInput::CompressedInput(std::string path, const std::atomic<bool>& stop)
    : path_(std::move(path)), stop_(stop), buffer_(buffer_bytes) {
  OpenedFile file = open_input(path_);
  opened_ = std::move(file.descriptor);
  fd_ = file.fd;
  can_wait_ = !S_ISREG(file.info.st_mode);
  if (!can_wait_) static_cast<void>(::posix_fadvise(fd_, 0, 0, POSIX_FADV_SEQUENTIAL));
  if (path_ == standard_input) path_ = "standard input";
  choose_decompressor();
}

// A pipe may give its first bytes one by one.
void CompressedInput::choose_decompressor() {
  std::size_t filled = 0;
  while (filled < head_bytes) {
    const std::size_t n = read_stored(std::span(buffer_).subspan(filled));
    if (n == 0) break;
    filled += n;
  }
  pending_ = std::span<const char>(buffer_).first(filled);
  refuse_unsupported(path_, std::string_view(buffer_.data(), filled).substr(0, head_bytes));
  if (path_.ends_with(".gz") || starts_with(pending_, gzip_magic))
    decompressor_ = std::make_unique<Gunzip>(path_);
  else if (path_.ends_with(".zst") || starts_with(pending_, zstd_magic))
    decompressor_ = std::make_unique<Unzstd>(path_);
}

std::size_t CompressedInput::read_stored(std::span<char> out) {
  while (true) {
    if (can_wait_) {
      pollfd wait{.fd = fd_, .events = POLLIN, .revents = 0};
      const int ready = ::poll(&wait, 1, poll_milliseconds);
      require_user(!stop_, "{}: interrupted", path_);
      if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
    }
    const ssize_t n = ::read(fd_, out.data(), out.size());
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n < 0) fail_to("read", path_);
    stored_read_ += static_cast<std::uint64_t>(n);
    return static_cast<std::size_t>(n);
  }
}

std::size_t CompressedInput::read(std::span<char> out) {
  require_user(!stop_, "{}: interrupted", path_);
  if (!decompressor_) {
    if (pending_.empty()) return read_stored(out);  // without a copy
    const std::size_t n = std::min(out.size(), pending_.size());
    std::memcpy(out.data(), pending_.data(), n);
    pending_ = pending_.subspan(n);
    return n;
  }
  while (true) {
    if (const std::size_t n = decompressor_->run(pending_, out); n > 0) return n;
    if (!pending_.empty()) continue;
    const std::size_t n = read_stored(buffer_);
    if (n == 0) {
      require_user(decompressor_->may_end(), "{}: the compressed data ends too early; the file is cut short", path_);
      return 0;
    }
    pending_ = std::span<const char>(buffer_).first(n);
  }
}

std::optional<std::uint64_t> stored_size(const std::string& path) {
  struct stat info {};
  const bool standard = path == CompressedInput::standard_input;
  if ((standard ? ::fstat(STDIN_FILENO, &info) : ::stat(path.c_str(), &info)) != 0) fail_to("open", path);
  // Only plain files are opened to look at: the writer of a pipe would see it closed again.
  if (!S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode)) return std::nullopt;
  const OpenedFile file = open_input(path);
  return static_cast<std::uint64_t>(file.info.st_size);
}

}  // namespace tera
