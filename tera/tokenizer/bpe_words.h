#pragma once
// Ids of words, from the cache or by merging, for one thread.

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tera/tokenizer/bpe_merger.h"
#include "tera/tokenizer/word_cache.h"

namespace tera {

// Collects ids in a buffer of fixed size, so that the loop over words sees no vector.
class IdBuffer {
 public:
  explicit IdBuffer(std::vector<std::int32_t>& target) : target_(target) {}
  ~IdBuffer() = default;
  IdBuffer(const IdBuffer&) = delete;
  IdBuffer& operator=(const IdBuffer&) = delete;

  // Four are written, `count` of them count.
  void add_four(const std::int32_t* ids, std::int32_t count) {
    std::memcpy(next_, ids, 4 * sizeof(std::int32_t));
    next_ += count;
    if (next_ > buffer_.data() + buffer_.size() - 4) [[unlikely]]
      flush();
  }
  void add(const std::int32_t* ids, std::size_t count) {
    flush();
    target_.insert(target_.end(), ids, ids + count);
  }
  void flush() {
    target_.insert(target_.end(), buffer_.data(), next_);
    next_ = buffer_.data();
  }

 private:
  std::vector<std::int32_t>& target_;
  std::array<std::int32_t, 1024> buffer_;
  std::int32_t* next_ = buffer_.data();
};

class BpeWords {
 public:
  explicit BpeWords(const BpeVocab& vocab) : merger_(vocab) {}

  // `text_end` bounds what may be read.
  void encode(const char* word, const char* word_end, const char* text_end, IdBuffer& ids) {
    const auto size = static_cast<std::size_t>(word_end - word);
    if (size > WordCache::longest_word) return encode_long({word, size}, ids);
    const WordKey key = WordCache::key_of(word, size, text_end - word >= 16);
    const WordCache::Entry* const entry = cache_.find(key);
    if (entry == nullptr) return encode_new({word, size}, key, ids);
    if (entry->count <= WordCache::most_inline) return ids.add_four(entry->ids, entry->count);
    ids.add(cache_.more_ids(*entry), static_cast<std::size_t>(entry->count));
  }

 private:
  void encode_new(std::string_view word, const WordKey& key, IdBuffer& ids);
  void encode_long(std::string_view word, IdBuffer& ids);

  BpeMerger merger_;
  WordCache cache_;
};

}  // namespace tera
