#pragma once
// A double-array trie over bytes, in which a step is one access to memory: the child of a node for byte b lies at base
// + b, if its parent is that node.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace tera {

class DoubleArray {
 public:
  struct Key {
    std::string_view text;  // not empty
    std::int32_t value;     // not negative
  };
  static constexpr std::int32_t none = -1;

  DoubleArray() : DoubleArray(std::vector<Key>{}) {}
  explicit DoubleArray(std::vector<Key> keys);  // the last of equal texts counts

  std::int32_t find(std::string_view text) const;

  // Calls visit(bytes, value) for every key that `text` starts with, the shortest first.
  template <class Visit>
  void for_prefixes(std::string_view text, Visit visit) const {
    std::uint32_t node = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (!step(node, text[i])) return;
      if (const std::int32_t value = cells_[node].value; value >= 0) visit(i + 1, value);
    }
  }

  struct Match {
    std::size_t bytes = 0;  // 0: no key
    std::int32_t value = none;
  };
  Match longest_prefix(std::string_view text) const {
    Match longest;
    for_prefixes(text, [&](std::size_t bytes, std::int32_t value) { longest = {bytes, value}; });
    return longest;
  }

 private:
  struct Cell {
    std::uint32_t base = 0;
    std::uint32_t parent = no_parent;
    std::int32_t value = none;
  };
  static constexpr std::uint32_t no_parent = 0xffffffffU, root_parent = no_parent - 1;

  bool step(std::uint32_t& node, char c) const {
    const std::uint32_t child = cells_[node].base + static_cast<unsigned char>(c);
    if (cells_[child].parent != node) return false;
    node = child;
    return true;
  }

  class Builder;
  std::vector<Cell> cells_;  // 256 cells after the last base, so that no step is out of bounds
};

}  // namespace tera
