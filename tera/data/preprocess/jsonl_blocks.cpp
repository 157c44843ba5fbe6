#include "tera/data/preprocess/jsonl_blocks.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tera/base/error.h"
#include "tera/base/utf8.h"

namespace tera {
namespace {

bool ends_line(char c) { return c == '\n' || c == '\r'; }

// The length of the complete lines of the text, when more text may follow: a \r at the very end may be half of \r\n.
std::size_t padded_to_lines(std::string_view text) {
  std::size_t end = text.size();
  if (end > 0 && text[end - 1] == '\r') --end;
  while (end > 0 && !ends_line(text[end - 1])) --end;
  return end;
}

}  // namespace

void check_utf8(std::string_view line) {
  const std::size_t good = valid_utf8_prefix(line);
  if (good < line.size())
    fail_user("the line is not UTF-8: byte {} is 0x{:02x}", good + 1, static_cast<unsigned char>(line[good]));
}

void LineBlock::drop_memory() {
  bytes_.reset();
  size_ = capacity_ = 0;
}

// Doubles the buffer, but not beyond the size at which a line is known to be too long.
void BlockReader::grow(LineBlock& block, std::size_t at_least) const {
  const std::size_t limit = std::max(options_.max_line_bytes + 2, options_.block_bytes);
  const std::size_t wanted = std::max(at_least, std::min(std::max(options_.block_bytes, 2 * block.size_), limit));
  auto larger = std::make_unique_for_overwrite<char[]>(wanted);
  if (block.size_ > 0) std::memcpy(larger.get(), block.bytes_.get(), block.size_);
  block.bytes_ = std::move(larger);
  block.capacity_ = wanted;
}

BlockReader::Fill BlockReader::fill(LineBlock& block) {
  block.size_ = 0;
  if (block.capacity_ < carry_.size()) grow(block, carry_.size());
  std::ranges::copy(carry_, block.bytes_.get());
  block.size_ = carry_.size();
  carry_.clear();
  std::size_t searched = 0;
  while (true) {
    if (block.size_ == block.capacity_) grow(block, block.size_ + 1);
    const std::size_t n = input_->read({block.bytes_.get() + block.size_, block.capacity_ - block.size_});
    block.size_ += n;
    if (n == 0) return Fill::end;
    if (block.size_ < std::min(options_.block_bytes, block.capacity_)) continue;
    const std::size_t lines = padded_to_lines(block.text().substr(searched));
    if (lines > 0) {
      carry_ = block.text().substr(searched + lines);
      block.size_ = searched + lines;
      return Fill::lines;
    }
    const bool half_ended = block.text().back() == '\r';
    if (block.size_ - (half_ended ? 1 : 0) > options_.max_line_bytes) return Fill::overlong;
    searched = block.size_ - (half_ended ? 1 : 0);
  }
}

// What follows the end of the line is carried over.
void BlockReader::skip_line(bool half_ended) {
  std::vector<char> bytes(options_.block_bytes);
  while (const std::size_t n = input_->read(bytes)) {
    const std::string_view piece(bytes.data(), n);
    if (half_ended) {
      carry_ = piece.substr(piece.front() == '\n' ? 1 : 0);
      return;
    }
    const auto end = static_cast<std::size_t>(std::ranges::find_if(piece, ends_line) - piece.begin());
    if (end == n) continue;
    half_ended = piece[end] == '\r' && end + 1 == n;
    if (half_ended) continue;
    carry_ = piece.substr(end + (piece.substr(end).starts_with("\r\n") ? 2 : 1));
    return;
  }
}

bool BlockReader::next(LineBlock& block) {
  while (true) {
    if (!input_) {
      if (next_file_ == files_.size()) return false;
      input_.emplace(files_[next_file_++], stop_);
      at_start_ = true;
    }
    const Fill filled = fill(block);
    block.file = next_file_ - 1;
    block.first = std::exchange(at_start_, false);
    block.overlong = filled == Fill::overlong;
    if (block.overlong) {
      const bool half_ended = block.text().back() == '\r';
      block.size_ = 0;
      skip_line(half_ended);
    }
    block.stored = stored_before_ + input_->stored_bytes();
    if (filled != Fill::end) return true;
    stored_before_ = block.stored;
    input_.reset();
    if (block.size_ > 0) return true;
  }
}

}  // namespace tera
