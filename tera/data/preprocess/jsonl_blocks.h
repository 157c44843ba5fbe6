#pragma once
// Text files cut into blocks of whole lines, so that several threads can read lines at a time. Lines end as Python's
// text files end them: \n, \r\n or \r.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tera/data/preprocess/compressed_input.h"

namespace tera {

struct LineBlock {
  std::size_t file = 0;      // index among the reader's files
  bool first = false;        // block of its file
  bool overlong = false;     // stands for one line that was longer than allowed, and holds nothing
  std::uint64_t stored = 0;  // bytes read from all files when the block was cut, before decompression

  std::string_view text() const { return {bytes_.get(), size_}; }
  std::size_t memory() const { return capacity_; }
  void drop_memory();

 private:
  friend class BlockReader;
  std::unique_ptr<char[]> bytes_;
  std::size_t size_ = 0, capacity_ = 0;
};

class BlockReader {
 public:
  struct Options {
    std::size_t block_bytes = std::size_t{1} << 20;  // a minimum, except at the end of a file
    std::size_t max_line_bytes = std::size_t{128} << 20;
  };
  BlockReader(std::vector<std::string> files, Options options, const std::atomic<bool>& stop)
      : files_(std::move(files)), options_(options), stop_(stop) {}

  bool next(LineBlock& block);  // false at the end of the last file

 private:
  enum class Fill { lines, overlong, end };
  Fill fill(LineBlock& block);
  void grow(LineBlock& block, std::size_t at_least) const;
  void skip_line(bool half_ended);  // the line's last byte so far is \r, the end or half of it

  std::vector<std::string> files_;
  Options options_;
  const std::atomic<bool>& stop_;
  std::optional<CompressedInput> input_;
  std::size_t next_file_ = 0;
  std::uint64_t stored_before_ = 0;  // bytes of files that were read to the end
  bool at_start_ = true;             // at the begin of the file
  std::string carry_;                // the beginning of a line whose end was not read yet
};

// Calls take(line) for every line, without its end.
template <class Take>
void for_each_line(std::string_view text, const Take& take) {
  std::size_t feed = text.find('\n'), carriage = text.find('\r');  // the next of each; most texts have only feeds
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min({feed, carriage, text.size()});
    take(text.substr(begin, end - begin));
    begin = end + (end == carriage && feed == end + 1 ? 2 : 1);
    if (feed < begin) feed = text.find('\n', begin);
    if (carriage < begin) carriage = text.find('\r', begin);
  }
}

// A UserError that names the first byte that is not UTF-8.
void check_utf8(std::string_view line);

}  // namespace tera
