#pragma once
// The bytes of a file or of standard input, decompressed on the way: gzip (several members one after the other, as
// `cat a.gz b.gz` makes them) and zstd (several frames), told by the name or by the first bytes.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tera/base/file.h"

namespace tera {

// One kind of compression, undone piece by piece.
class Decompressor {
 public:
  virtual ~Decompressor() = default;
  // Takes from the front of `in` and fills `out` from the front; returns how much was filled. Takes or fills something
  // unless `in` is empty and all that was taken has been given out.
  virtual std::size_t run(std::span<const char>& in, std::span<char> out) = 0;
  virtual bool may_end() const = 0;  // the input is not in the middle of something
};

class CompressedInput {
 public:
  static constexpr std::string_view standard_input = "-";

  // Waiting for a pipe or a terminal ends with an exception soon after `stop` becomes true.
  CompressedInput(std::string path, const std::atomic<bool>& stop);

  const std::string& path() const { return path_; }
  std::size_t read(std::span<char> out);                       // 0 at the end
  std::uint64_t stored_bytes() const { return stored_read_; }  // taken from the file so far, compressed

 private:
  std::size_t read_stored(std::span<char> out);
  void choose_decompressor();

  std::string path_;
  const std::atomic<bool>& stop_;
  FileDescriptor opened_;
  int fd_;
  bool can_wait_ = false;  // no plain file
  std::vector<char> buffer_;
  std::span<const char> pending_;  // of the buffer, not taken yet
  std::uint64_t stored_read_ = 0;
  std::unique_ptr<Decompressor> decompressor_;  // none: the bytes are as they should be
};

// Bytes on disk; none where that cannot be known (a pipe). A UserError if the file cannot be read.
std::optional<std::uint64_t> stored_size(const std::string& path);

}  // namespace tera
