#pragma once
// A cache of the ids of words for one thread, in a fixed amount of memory: two words per cache line, the one used last
// first; the other one is evicted.

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace tera {

// A word of up to 15 bytes as two numbers, the last byte its length; of a longer one its length and a hash.
struct WordKey {
  std::uint64_t low = 0, high = 0;
  bool operator==(const WordKey& other) const { return ((low ^ other.low) | (high ^ other.high)) == 0; }
};

class WordCache {
 public:
  static constexpr std::size_t longest_inline_word = 15;  // a word of this size is its own key
  static constexpr std::size_t longest_word = 63;
  static constexpr std::int32_t max_inline = 3;

  struct Entry {
    WordKey key;
    std::int32_t ids[max_inline];  // ids of the word; with count `elsewhere`: the index in the arena
    std::int32_t count = 0;        // number of ids, or `elsewhere`
  };

  WordCache();

  // The key of a word of at most longest_inline_word; `readable` says that sixteen bytes can be read from its begin.
  static WordKey key_of(const char* word, std::size_t size, bool readable) {
    WordKey key;
    if (readable) {
      std::memcpy(&key, word, 16);
      key.low &= masks[size].low;
      key.high &= masks[size].high;
    } else {
      std::memcpy(&key, word, size);
    }
    key.high |= std::uint64_t{size} << 56;
    return key;
  }
  static WordKey hashed_key(std::string_view word);

  std::size_t line_of(const WordKey& key) const {
    const std::uint64_t mixed = (key.low ^ (key.high * 0x9e3779b97f4a7c15ULL)) * 0xff51afd7ed558ccdULL;
    return static_cast<std::size_t>((mixed ^ (mixed >> 32)) * 0xc4ceb9fe1a85ec53ULL >> line_shift) * 2;
  }
  void prefetch(std::size_t line) const { __builtin_prefetch(&entries_[line]); }

  // Null, or an entry whose key is this.
  const Entry* find(std::size_t line, const WordKey& key) {
    Entry* const entry = &entries_[line];
    if (entry[0].key == key) return entry;
    if (!(entry[1].key == key)) return nullptr;
    std::swap(entry[0], entry[1]);
    return entry;
  }
  // The ids of an entry that has too many for inline storage; nothing if it is of another word with the same hash.
  std::span<const std::int32_t> ids_elsewhere(const Entry& entry, std::string_view word) const;

  void insert(std::size_t line, const WordKey& key, std::string_view word, std::span<const std::int32_t> ids);

 private:
  struct Release {
    void operator()(Entry* entries) const;
  };
  static constexpr std::array<WordKey, longest_inline_word + 1> make_masks() {
    std::array<WordKey, longest_inline_word + 1> made{};
    for (std::size_t size = 1; size <= longest_inline_word; ++size) {
      made[size].low = size >= 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << (8 * size)) - 1;
      made[size].high = size <= 8 ? 0 : (std::uint64_t{1} << (8 * (size - 8))) - 1;
    }
    return made;
  }

  static const std::array<WordKey, longest_inline_word + 1> masks;
  static constexpr std::int32_t elsewhere = -1;
  static constexpr int line_bits = 18, line_shift = 64 - line_bits;
  std::unique_ptr<Entry[], Release> entries_;
  // Overflow of entries: the number of ids, the ids, and the word if its key does not have it.
  std::vector<std::int32_t> arena_;
};

inline constexpr std::array<WordKey, WordCache::longest_inline_word + 1> WordCache::masks = WordCache::make_masks();

}  // namespace tera
