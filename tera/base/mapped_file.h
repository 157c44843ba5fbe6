#pragma once
// A memory-mapped file, read only. Its size is fixed when it is opened; truncating a mapped file ends this process
// (SIGBUS).

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <span>
#include <type_traits>

namespace tera {

class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(std::filesystem::path path);  // UserError if it is no readable plain file
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile() { unmap(); }

  const std::filesystem::path& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }
  std::size_t size() const { return bytes_.size(); }
  void forget_pages() const;  // MADV_DONTNEED: the next access reads them again

 private:
  void unmap();

  std::filesystem::path path_;
  std::span<const std::byte> bytes_;
};

// An array of numbers in a file, at any address: elements are read by copying, since they may be unaligned.
template <class T>
requires std::is_trivially_copyable_v<T>
class PackedArray {
 public:
  PackedArray() = default;
  explicit PackedArray(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::size_t size() const { return bytes_.size() / sizeof(T); }
  std::span<const std::byte> bytes() const { return bytes_; }
  T operator[](std::size_t i) const {
    T value;
    std::memcpy(&value, bytes_.data() + i * sizeof(T), sizeof(T));
    return value;
  }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace tera
