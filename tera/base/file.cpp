#include "tera/base/file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "tera/base/error.h"

namespace tera {
namespace {

[[noreturn]] void fail_with_reason(std::string_view what, const std::filesystem::path& path, int reason) {
  fail_user("cannot {} {}: {}", what, path.string(), std::generic_category().message(reason));
}

// Writes all bytes at `offset`, or appends where that is negative. Returns 0 or the error number.
int write_fully(int fd, const char* data, std::size_t size, off_t offset, std::size_t& written) {
  while (written < size) {
    const ssize_t n = offset < 0 ? ::write(fd, data + written, size - written)
                                 : ::pwrite(fd, data + written, size - written, offset + static_cast<off_t>(written));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n < 0 ? errno : ENOSPC;
    written += static_cast<std::size_t>(n);
  }
  return 0;
}

FileDescriptor open_for_writing(const std::filesystem::path& path, int flags) {
  FileDescriptor file(::open(path.c_str(), flags | O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  if (!file) fail_with_reason("open for writing", path, errno);
  return file;
}

}  // namespace

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = other.release();
  }
  return *this;
}

int FileDescriptor::release() {
  const int fd = fd_;
  fd_ = -1;
  return fd;
}

void FileDescriptor::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

bool path_exists(const std::filesystem::path& path) {
  std::error_code error;
  const bool there = std::filesystem::exists(path, error);
  if (error) fail_with_reason("look at", path, error.value());
  return there;
}

void rename_path(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) == 0) return;
  fail_user("cannot rename {} to {}: {}", from.string(), to.string(), std::generic_category().message(errno));
}

// Some file systems refuse to sync folders; their files are complete either way.
void sync_parent_folder(const std::filesystem::path& path) {
  const auto folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  const FileDescriptor file(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (file) static_cast<void>(::fsync(file.get()));
}

std::string read_whole_file(const std::filesystem::path& path, std::size_t max_bytes) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) fail_with_reason("open", path, errno);
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) fail_with_reason("read", path, errno);
  require_user(S_ISREG(info.st_mode), "{} is not a file but {}", path.string(),
               S_ISDIR(info.st_mode) ? "a folder" : "something special");
  const auto size = static_cast<std::size_t>(info.st_size);
  require_user(size <= max_bytes, "{} has {} bytes; at most {} are allowed here", path.string(), size, max_bytes);

  std::string content(size, '\0');
  std::size_t filled = 0;
  while (filled < size) {
    const ssize_t n = ::read(file.get(), content.data() + filled, size - filled);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_with_reason("read", path, errno);
    if (n == 0) break;  // the file shrank meanwhile
    filled += static_cast<std::size_t>(n);
  }
  content.resize(filled);
  return content;
}

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)) {
  // A temporary name may exist, of another writer of the same path or of one that died: take the next.
  for (int attempt = 0; !file_; ++attempt) {
    temporary_ = path_;
    temporary_ += fmt::format(".tmp-{}-{}", ::getpid(), attempt);
    file_ = FileDescriptor(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (!file_ && (errno != EEXIST || attempt == 99)) fail_with_reason("open for writing", temporary_, errno);
  }
}

AtomicFile::~AtomicFile() {
  if (!file_) return;
  file_.close();
  ::unlink(temporary_.c_str());
}

void AtomicFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  require(static_cast<bool>(file_), "{} was already committed", path_.string());
  std::size_t written = 0;
  const int reason = write_fully(file_.get(), reinterpret_cast<const char*>(bytes.data()), bytes.size(),
                                 static_cast<off_t>(offset), written);
  if (reason != 0) fail_with_reason("write", path_, reason);
}

// fsync reports errors of buffered writes; for a file that cannot be synced (a pipe) it returns EINVAL.
void AtomicFile::sync() {
  require(static_cast<bool>(file_), "{} was already committed", path_.string());
  if (::fsync(file_.get()) != 0 && errno != EINVAL) fail_with_reason("write", path_, errno);
}

void AtomicFile::commit() {
  sync();
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail_with_reason("write", path_, errno);
  file_.close();
  sync_parent_folder(path_);
}

void write_file_atomically(const std::filesystem::path& path, std::string_view content) {
  AtomicFile file(path);
  file.write_at(0, std::as_bytes(std::span(content)));
  file.commit();
}

AppendFile::AppendFile(std::filesystem::path path, Start start)
    : path_(std::move(path)), file_(open_for_writing(path_, O_APPEND | (start == Start::empty ? O_TRUNC : 0))) {}

void AppendFile::append(std::string_view text) {
  std::size_t written = 0;
  const int reason = write_fully(file_.get(), text.data(), text.size(), -1, written);
  if (reason == 0) return;
  struct stat info {};
  if (written > 0 && ::fstat(file_.get(), &info) == 0 && S_ISREG(info.st_mode))
    static_cast<void>(::ftruncate(file_.get(), info.st_size - static_cast<off_t>(written)) == 0);
  fail_with_reason("write", path_, reason);
}

void read_at(const FileDescriptor& file, std::uint64_t offset, std::span<std::byte> out,
             const std::filesystem::path& path) {
  while (!out.empty()) {
    const ssize_t n = ::pread(file.get(), out.data(), out.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_with_reason("read", path, errno);
    require_user(n > 0, "{} ended early: another program has shortened it", path.string());
    out = out.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
}

void write_all(int fd, std::string_view text, std::string_view name) {
  std::size_t written = 0;
  const int reason = write_fully(fd, text.data(), text.size(), -1, written);
  if (reason != 0) fail_with_reason("write to", name, reason);
}

}  // namespace tera
