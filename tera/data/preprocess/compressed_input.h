#pragma once
// The bytes of a file or of standard input, decompressed on the way: gzip (several members one after the other, as
// `cat a.gz b.gz` makes them) and zstd (several frames), recognised by the name or by the first bytes.

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

// A streaming decompressor of one format.
class Decompressor {
 public:
  virtual ~Decompressor() = default;
  // Consumes the front of `in` and fills the front of `out`; returns how much was filled. Each call consumes or fills
  // something unless `in` is empty and everything consumed has been written.
  virtual std::size_t run(std::span<const char>& in, std::span<char> out) = 0;
  virtual bool may_end() const = 0;  // the input is not inside a member or a frame
};

class CompressedInput {
 public:
  static constexpr std::string_view standard_input = "-";

  // Waiting for a pipe or a terminal ends with an exception soon after `stop` becomes true.
  CompressedInput(std::string path, const std::atomic<bool>& stop);

  const std::string& path() const { return path_; }
  std::size_t read(std::span<char> out);                       // 0 at the end
  std::uint64_t stored_bytes() const { return stored_read_; }  // read from the file so far, compressed

 private:
  std::size_t read_stored(std::span<char> out);
  void choose_decompressor();

  std::string path_;
  const std::atomic<bool>& stop_;
  FileDescriptor opened_;
  int fd_;
  bool can_wait_ = false;  // a pipe or a terminal, no plain file
  std::vector<char> buffer_;
  std::span<const char> pending_;  // bytes of the buffer that are not consumed yet
  std::uint64_t stored_read_ = 0;
  std::unique_ptr<Decompressor> decompressor_;  // none: the input is not compressed
};

// Bytes on disk; none where they are unknown (a pipe). A UserError if the file cannot be read.
std::optional<std::uint64_t> stored_size(const std::string& path);

}  // namespace tera
