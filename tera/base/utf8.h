#pragma once
// UTF-8 validation: no overlong forms, no surrogates, nothing above U+10FFFF.

#include <cstddef>
#include <string>
#include <string_view>

namespace tera {

struct Utf8Step {
  std::size_t bytes = 0;  // length of the character, or of the part that cannot belong to one (at least 1)
  bool valid = false;
};

// The first character of `text`, which is not empty.
Utf8Step next_utf8(std::string_view text);

// The number of ASCII bytes at the front, checked eight at a time.
std::size_t ascii_prefix(std::string_view text);

// The number of bytes before the first that is not UTF-8; text.size() if all are.
std::size_t valid_utf8_prefix(std::string_view text);

// The text with each part that is not UTF-8 replaced by U+FFFD.
std::string mend_utf8(std::string_view text);

}  // namespace tera
