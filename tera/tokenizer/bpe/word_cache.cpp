#include "tera/tokenizer/bpe/word_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <new>

namespace tera {

namespace {

constexpr std::size_t arena_most = std::size_t{1} << 22;

}  // namespace

// Fresh pages are zero, and no word has a key of zero, since each has its length in it.
WordCache::WordCache() {
  constexpr std::size_t bytes = (std::size_t{2} << line_bits) * sizeof(Entry);
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  madvise(memory, bytes, MADV_HUGEPAGE);  // a hint only
  entries_.reset(static_cast<Entry*>(memory));
}

void WordCache::Release::operator()(Entry* entries) const {
  munmap(entries, (std::size_t{2} << line_bits) * sizeof(Entry));
}

WordKey WordCache::hashed_key(std::string_view word) {
  WordKey key;
  const auto mix = [&key](const char* at) {
    std::uint64_t part;
    std::memcpy(&part, at, 8);
    key.low = std::rotl(key.low ^ part, 27) * 0x9e3779b97f4a7c15ULL;
    key.high = (key.high + part) * 0xff51afd7ed558ccdULL;
    key.high ^= key.high >> 29;
  };
  for (std::size_t at = 0; at + 8 <= word.size(); at += 8) mix(word.data() + at);
  mix(word.data() + word.size() - 8);
  key.high = key.high >> 8 | std::uint64_t{word.size()} << 56;
  return key;
}

std::span<const std::int32_t> WordCache::ids_elsewhere(const Entry& entry, std::string_view word) const {
  const std::int32_t* const at = arena_.data() + entry.ids[0];
  const std::span<const std::int32_t> ids(at + 1, static_cast<std::size_t>(*at));
  if (word.size() > longest_inline_word && std::memcmp(at + 1 + *at, word.data(), word.size()) != 0) return {};
  return ids;
}

void WordCache::insert(std::size_t line, const WordKey& key, std::string_view word, std::span<const std::int32_t> ids) {
  Entry entry{key, {}, static_cast<std::int32_t>(ids.size())};
  if (ids.size() <= max_inline && word.size() <= longest_inline_word) {
    std::copy(ids.begin(), ids.end(), entry.ids);
  } else {
    if (arena_.size() + longest_word * 2 > arena_most) {
      std::fill_n(entries_.get(), std::size_t{2} << line_bits, Entry{});
      arena_.clear();
    }
    const std::size_t place = arena_.size();
    entry.ids[0] = static_cast<std::int32_t>(place);
    entry.count = elsewhere;
    arena_.push_back(static_cast<std::int32_t>(ids.size()));
    arena_.insert(arena_.end(), ids.begin(), ids.end());
    if (word.size() > longest_inline_word) {
      arena_.resize(arena_.size() + (word.size() + 3) / 4);
      std::memcpy(arena_.data() + place + 1 + ids.size(), word.data(), word.size());
    }
  }
  Entry* const entries = &entries_[line];
  // A word may be put twice, if it was looked up again before its ids were known.
  entries[entries[0].key == WordKey{} || entries[0].key == key ? 0 : 1] = entry;
}

}  // namespace tera
