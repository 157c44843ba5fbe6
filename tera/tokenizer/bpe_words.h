#pragma once
// Ids of words, from the cache or by merging, for one thread.

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tera/tokenizer/bpe_merger.h"
#include "tera/tokenizer/word_cache.h"

namespace tera {

// Takes words one by one and looks them up some at a time: by then the cache lines that were asked for have come, and
// what the branches of a scanner cost does not add to what memory costs. Words must stay where they are until finish().
class BpeWords {
 public:
  explicit BpeWords(const BpeVocab& vocab) : merger_(vocab) {}

  void begin(std::vector<std::int32_t>& ids, const char* text_end) {
    ids_ = &ids;
    text_end_ = text_end;
  }
  // A word that is not empty.
  void add(const char* word, const char* word_end) {
    const auto size = static_cast<std::size_t>(word_end - word);
    Pending& pending = pending_[waiting_];
    pending.word = word;
    pending.size = size;
    if (size > WordCache::longest_whole) [[unlikely]] {
      if (size > WordCache::longest_word) return add_long(word, size);
      pending.key = WordCache::hashed_key({word, size});
    } else {
      pending.key = WordCache::key_of(word, size, text_end_ - word >= 16);
    }
    pending.line = cache_.line_of(pending.key);
    cache_.prefetch(pending.line);
    if (++waiting_ == pending_.size()) look_up();
  }
  void finish() { look_up(); }

 private:
  struct Pending {
    WordKey key;
    const char* word;
    std::size_t size;
    std::size_t line;
  };

  void look_up();
  void add_long(const char* word, std::size_t size);
  std::span<const std::int32_t> find_or_merge(const Pending& pending, const WordCache::Entry* entry);

  BpeMerger merger_;
  WordCache cache_;
  std::vector<std::int32_t>* ids_ = nullptr;
  const char* text_end_ = nullptr;
  std::size_t waiting_ = 0;
  std::array<Pending, 32> pending_;
};

}  // namespace tera
