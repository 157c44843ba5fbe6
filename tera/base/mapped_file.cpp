#include "tera/base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "tera/base/error.h"
#include "tera/base/file.h"

namespace tera {

MappedFile::MappedFile(std::filesystem::path path) : path_(std::move(path)) {
  const auto check = [this](bool good) {
    if (!good) fail_user("cannot open {}: {}", path_.string(), std::generic_category().message(errno));
  };
  const FileDescriptor file(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  check(static_cast<bool>(file));
  struct stat info {};
  check(::fstat(file.get(), &info) == 0);
  if (!S_ISREG(info.st_mode))
    fail_user("{} is not a file but {}", path_.string(), S_ISDIR(info.st_mode) ? "a folder" : "something special");
  const auto size = static_cast<std::size_t>(info.st_size);
  if (size == 0) return;  // nothing to map, and mmap refuses to
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.get(), 0);
  check(data != MAP_FAILED);
  bytes_ = {static_cast<const std::byte*>(data), size};
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    unmap();
    path_ = std::move(other.path_);
    bytes_ = std::exchange(other.bytes_, {});
  }
  return *this;
}

void MappedFile::forget_pages() const {
  if (!bytes_.empty()) ::madvise(const_cast<std::byte*>(bytes_.data()), bytes_.size(), MADV_DONTNEED);
}

void MappedFile::unmap() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace tera
