#pragma once
// A hash index of ids by spelling, for the vocabularies of files: built once, then looked up some hundred thousand
// times while a file is read.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tera {

class TokenIndex {
 public:
  // `tokens` by id, empty where there is none, must not change. Of two equal tokens the later one counts.
  explicit TokenIndex(const std::vector<std::string>& tokens);
  std::int32_t find(std::string_view token) const;  // -1: none

 private:
  std::size_t place(std::string_view token) const;  // its slot, or the free one where it would be

  const std::vector<std::string>& tokens_;
  std::vector<std::int32_t> slots_;  // ids, -1 where free; a power of two of them, at most half of which are taken
};

}  // namespace tera
