#pragma once
// Remembers the ids of short words for one thread, in a fixed amount of memory: two words per cache line, the one used
// last first, the other makes room for new ones.

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace tera {

// A word of up to 15 bytes as two numbers; the last byte is its length.
struct WordKey {
  std::uint64_t low = 0, high = 0;
  bool operator==(const WordKey&) const = default;
};

class WordCache {
 public:
  static constexpr std::size_t longest_word = 15;
  static constexpr std::int32_t most_inline = 3;

  struct Entry {
    WordKey key;
    std::int32_t ids[most_inline];  // or where the ids are in the arena
    std::int32_t count = 0;
  };

  WordCache();

  // The key of a word; `readable` says that sixteen bytes can be read at its place.
  static WordKey key_of(const char* word, std::size_t size, bool readable) {
    WordKey key;
    if (readable) {
      std::memcpy(&key.low, word, 8);
      std::memcpy(&key.high, word + 8, 8);
      if (size < 8) {
        key.low &= (std::uint64_t{1} << (8 * size)) - 1;
        key.high = 0;
      } else {
        key.high &= (std::uint64_t{1} << (8 * (size - 8))) - 1;
      }
    } else {
      std::memcpy(&key, word, size);
    }
    key.high |= std::uint64_t{size} << 56;
    return key;
  }

  const Entry* find(const WordKey& key) {
    Entry* const line = &entries_[line_of(key)];
    if (line[0].key == key) return &line[0];
    if (line[1].key == key) {
      std::swap(line[0], line[1]);
      return &line[0];
    }
    return nullptr;
  }

  void insert(const WordKey& key, std::span<const std::int32_t> ids);

  // Of an entry with more ids than fit into it.
  const std::int32_t* more_ids(const Entry& entry) const { return &arena_[static_cast<std::size_t>(entry.ids[0])]; }

 private:
  struct Release {
    void operator()(Entry* entries) const;
  };

  std::size_t line_of(const WordKey& key) const {
    const std::uint64_t mixed = (key.low ^ (key.high * 0x9e3779b97f4a7c15ULL)) * 0xff51afd7ed558ccdULL;
    return static_cast<std::size_t>((mixed ^ (mixed >> 32)) * 0xc4ceb9fe1a85ec53ULL >> line_shift) * 2;
  }

  static constexpr int line_bits = 17, line_shift = 64 - line_bits;
  std::unique_ptr<Entry[], Release> entries_;
  std::vector<std::int32_t> arena_;
};

}  // namespace tera
