#include "tera/tokenizer/word_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace tera {

namespace {

constexpr std::size_t arena_ids = std::size_t{1} << 20;

}  // namespace

// Fresh pages are zero, and a key of zero is no word's, since each has its length in it.
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

void WordCache::insert(const WordKey& key, std::span<const std::int32_t> ids) {
  Entry entry{key, {}, static_cast<std::int32_t>(ids.size())};
  if (entry.count <= most_inline) {
    std::copy(ids.begin(), ids.end(), entry.ids);
  } else {
    if (arena_.size() + ids.size() > arena_ids) {
      std::fill_n(entries_.get(), std::size_t{2} << line_bits, Entry{});
      arena_.clear();
    }
    entry.ids[0] = static_cast<std::int32_t>(arena_.size());
    arena_.insert(arena_.end(), ids.begin(), ids.end());
  }
  Entry* const line = &entries_[line_of(key)];
  line[line[0].key == WordKey{} ? 0 : 1] = entry;
}

}  // namespace tera
