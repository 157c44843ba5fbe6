#include "tera/tokenizer/bpe/double_array.h"

#include <algorithm>

#include "tera/base/error.h"

namespace tera {

// Places the nodes breadth first. The children of a node need free cells at fixed distances.
class DoubleArray::Builder {
 public:
  Builder(std::vector<Key> keys, std::vector<Cell>& cells) : keys_(std::move(keys)), cells_(cells) {
    for (const Key& key : keys_)
      require(!key.text.empty() && key.value >= 0, "a key of a trie is empty or has no value");
    std::ranges::stable_sort(keys_, {}, &Key::text);
    cells_.assign(2 * alphabet, Cell{});
    cells_[0].parent = root_parent;
  }

  void run() {
    std::vector<Node> level = {{0, 0, keys_.size()}}, next;
    for (std::size_t depth = 0; !level.empty(); ++depth) {
      next.clear();
      for (const Node& node : level) place_children(node, depth, next);
      level.swap(next);
    }
    std::uint32_t last_base = 0;
    for (const Cell& cell : cells_) last_base = std::max(last_base, cell.base);
    cells_.resize(std::size_t{last_base} + alphabet);
    cells_.shrink_to_fit();
  }

 private:
  static constexpr std::size_t alphabet = 256;
  struct Node {
    std::uint32_t cell;
    std::size_t first, last;  // keys
  };

  void place_children(const Node& node, std::size_t depth, std::vector<Node>& children) {
    std::size_t first = node.first;
    while (first < node.last && keys_[first].text.size() == depth) cells_[node.cell].value = keys_[first++].value;
    if (first == node.last) return;
    const std::size_t start = children.size();
    labels_.clear();
    while (first < node.last) {
      const auto label = static_cast<unsigned char>(keys_[first].text[depth]);
      std::size_t last = first;
      while (last < node.last && static_cast<unsigned char>(keys_[last].text[depth]) == label) ++last;
      labels_.push_back(label);
      children.push_back({0, first, last});
      first = last;
    }
    const std::uint32_t base = find_base();
    cells_[node.cell].base = base;
    for (std::size_t i = 0; i < labels_.size(); ++i) {
      children[start + i].cell = base + labels_[i];
      use(base + labels_[i], node.cell);
    }
  }

  bool is_free(std::size_t cell) const { return cells_[cell].parent == no_parent; }

  // A few gaps are tried; then all children go after the last used cell.
  std::uint32_t find_base() {
    std::size_t tries = 0;
    for (std::uint32_t cell = gaps_[0].next; cell != 0 && tries < max_tries; cell = gaps_[cell].next, ++tries)
      if (cell > labels_[0] && all_free(cell - labels_[0])) return cell - labels_[0];
    return static_cast<std::uint32_t>(std::max<std::size_t>(gaps_.size(), std::size_t{labels_[0]} + 1)) - labels_[0];
  }

  bool all_free(std::size_t base) const {
    return std::ranges::all_of(labels_, [&](unsigned char label) { return is_free(base + label); });
  }

  void use(std::uint32_t cell, std::uint32_t parent) {
    while (gaps_.size() <= cell) add_gap();
    gaps_[gaps_[cell].last].next = gaps_[cell].next;
    gaps_[gaps_[cell].next].last = gaps_[cell].last;
    if (gaps_.size() + alphabet > cells_.size()) cells_.resize(cells_.size() + cells_.size() / 2 + 2 * alphabet);
    require(cells_.size() < root_parent, "a trie has too many nodes");
    cells_[cell].parent = parent;
  }

  void add_gap() {
    const auto cell = static_cast<std::uint32_t>(gaps_.size());
    gaps_.push_back({gaps_[0].last, 0});
    gaps_[gaps_[cell].last].next = cell;
    gaps_[0].last = cell;
  }

  static constexpr std::size_t max_tries = 64;

  std::vector<Key> keys_;
  std::vector<Cell>& cells_;
  std::vector<unsigned char> labels_;
  struct Gap {
    std::uint32_t last, next;
  };
  std::vector<Gap> gaps_ = {{0, 0}};  // free cells among those up to the last used, in a ring that starts at cell 0
};

DoubleArray::DoubleArray(std::vector<Key> keys) { Builder(std::move(keys), cells_).run(); }

std::int32_t DoubleArray::find(std::string_view text) const {
  std::uint32_t node = 0;
  for (const char c : text)
    if (!step(node, c)) return none;
  return cells_[node].value;
}

}  // namespace tera
