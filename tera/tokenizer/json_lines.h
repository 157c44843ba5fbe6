#pragma once
// A fast reader and writer of JSON lines of texts and ids: the formats of `tera tokenizer encode` and `decode`.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tera {

// Reads lines from a descriptor in large blocks; memory is that of the longest line.
class LineReader {
 public:
  LineReader(int descriptor, std::string name) : descriptor_(descriptor), name_(std::move(name)) {}
  // False at the end. The line, without its end, is valid until the next call.
  bool next(std::string_view& line);
  std::int64_t number() const { return number_; }  // number of the line, from 1
  const std::string& name() const { return name_; }

 private:
  bool fill();

  int descriptor_;
  std::string name_;
  std::string buffer_;
  std::size_t begin_ = 0, end_ = 0;  // range of the buffer that was not returned yet
  std::size_t searched_ = 0;         // no line ends before it
  std::int64_t number_ = 0;
  bool at_end_ = false;
};

// Reads a line that is one JSON string. False, with the reason, if it is not: no string, invalid UTF-8, half a
// surrogate pair. `text` may refer to the line or to `scratch`.
bool read_json_text(std::string_view line, std::string& scratch, std::string_view& text, std::string& reason);

// Reads a line that is a list of 32-bit integers.
bool read_json_ids(std::string_view line, std::vector<std::int32_t>& ids, std::string& reason);

void append_json_ids(std::span<const std::int32_t> ids, std::string& out);
void append_json_text(std::string_view text, std::string& out);  // text is UTF-8

}  // namespace tera
