#pragma once
// Ids of words, from the cache or by merging, for one thread.

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tera/tokenizer/bpe/bpe_merger.h"
#include "tera/tokenizer/bpe/word_cache.h"

namespace tera {

// Takes words one by one and looks them up in batches: by then the prefetched cache lines have arrived, and the branch
// misses of a scanner do not add to the latency of memory. Words must stay in place until finish().
class BpeWords {
 public:
  explicit BpeWords(const BpeVocab& vocab) : BpeWords(vocab, vocab.byte_id(' ')) {}
  // `space` is the token that a space begins as.
  BpeWords(const BpeVocab& vocab, BpeVocab::Id space) : merger_(vocab, space) {}

  void begin(std::vector<std::int32_t>& ids, const char* text_end) {
    ids_ = &ids;
    text_end_ = text_end;
  }
  // Adds a word that is not empty.
  void add(const char* word, const char* word_end) {
    const auto size = static_cast<std::size_t>(word_end - word);
    Pending& pending = pending_[waiting_];
    pending.word = word;
    pending.size = size;
    if (size > WordCache::longest_inline_word) [[unlikely]] {
      if (size > WordCache::longest_word) return add_long(word, size);
      pending.key = WordCache::hashed_key({word, size});
    } else {
      pending.key = WordCache::key_of(word, size, text_end_ - word >= 16);
    }
    pending.line = cache_.line_of(pending.key);
    cache_.prefetch(pending.line);
    if (++waiting_ == pending_.size()) look_up();
  }
  void finish() {
    look_up();
    resolve();
  }

 private:
  struct Pending {
    WordKey key;
    const char* word;
    std::size_t size;
    std::size_t line;
  };
  struct Miss {
    WordKey key;
    std::size_t line;
    std::size_t place;  // in found_
  };
  static constexpr std::size_t batch = 32, max_found = 4096;

  void look_up();
  void resolve();
  void look_elsewhere(const Pending& pending, const WordCache::Entry* entry);
  void add_long(const char* word, std::size_t size);

  BpeMerger merger_;
  WordCache cache_;
  std::vector<std::int32_t>* ids_ = nullptr;
  const char* text_end_ = nullptr;
  std::size_t waiting_ = 0;
  std::array<Pending, batch> pending_;
  // Ids of words that were in the cache; missing words are merged later, and their ids are inserted between these.
  std::size_t found_count_ = 0, missing_ = 0;
  std::array<Miss, BpeMerger::max_jobs> misses_;
  std::array<BpeWord, BpeMerger::max_jobs> words_;
  std::array<std::int32_t, max_found + 4> found_;  // a copy of an entry may write past its ids
};

}  // namespace tera
