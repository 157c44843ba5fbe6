#pragma once
// One line of JSON, read as Python's json module reads it: of equal keys the last counts, NaN and Infinity are numbers,
// numbers may have any length, and half a surrogate pair is accepted in values that are not used. No document tree is
// built: texts without escapes point into the line.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tera {

class JsonlParser {
 public:
  static constexpr int max_depth = 1000;  // about what Python's recursion allows

  explicit JsonlParser(std::vector<std::string> keys);

  // The line, which must be UTF-8, must be an object with all keys. A UserError says what is wrong with it.
  void parse(std::string_view line);

  // The value of a key in the last line: a string, or the strings of a list. Valid until the next line is parsed.
  std::span<const std::string_view> texts(std::size_t key) const;

  // Drops the last line, and memory that only an unusually long one needs.
  void trim();
  std::size_t memory() const { return decoded_.capacity() + texts_.capacity() * sizeof(texts_[0]); }

 private:
  static constexpr std::size_t kept_bytes = std::size_t{4} << 20;  // limit of each buffer
  struct Value {
    std::string_view source;           // empty: the line has no such key
    std::size_t first = 0, count = 0;  // range of texts_
  };
  void note(std::string_view quoted_key, std::string_view source);
  void take_texts(std::size_t key);
  std::string_view text_of(std::size_t key, std::string_view quoted);

  std::vector<std::string> keys_;
  std::vector<Value> values_;  // one for each key
  std::vector<std::string_view> texts_;
  std::size_t line_bytes_ = 0;
  std::string decoded_, decoded_key_;
};

}  // namespace tera
