#include "tera/tokenizer/bpe/bpe_words.h"

namespace tera {

void BpeWords::look_up() {
  for (std::size_t i = 0; i < waiting_; ++i) {
    const Pending& pending = pending_[i];
    const WordCache::Entry* const entry = cache_.find(pending.line, pending.key);
    if (entry != nullptr && entry->count >= 0) [[likely]] {
      // The copy includes the count, which is overwritten.
      std::memcpy(&found_[found_count_], entry->ids, sizeof(entry->ids) + sizeof(entry->count));
      found_count_ += static_cast<std::size_t>(entry->count);
      continue;
    }
    look_elsewhere(pending, entry);
  }
  waiting_ = 0;
  if (found_count_ > max_found - batch * WordCache::longest_word) resolve();
}

void BpeWords::look_elsewhere(const Pending& pending, const WordCache::Entry* entry) {
  const std::string_view word(pending.word, pending.size);
  if (entry != nullptr) {
    const std::span<const std::int32_t> ids = cache_.ids_elsewhere(*entry, word);
    std::copy(ids.begin(), ids.end(), found_.begin() + static_cast<std::ptrdiff_t>(found_count_));
    found_count_ += ids.size();
    if (!ids.empty()) return;
  }
  words_[missing_] = merger_.announce(word);
  misses_[missing_] = {pending.key, pending.line, found_count_};
  if (++missing_ == misses_.size()) resolve();
}

void BpeWords::resolve() {
  merger_.encode(std::span(words_).first(missing_));
  const std::int32_t* const found = found_.data();
  const std::int32_t* from = found;
  for (std::size_t i = 0; i < missing_; ++i) {
    const std::span<const std::int32_t> ids = merger_.ids(i);
    ids_->insert(ids_->end(), from, found + misses_[i].place);
    ids_->insert(ids_->end(), ids.begin(), ids.end());
    from = found + misses_[i].place;
    cache_.insert(misses_[i].line, misses_[i].key, words_[i].text, ids);
  }
  ids_->insert(ids_->end(), from, found + found_count_);
  found_count_ = missing_ = 0;
}

void BpeWords::add_long(const char* word, std::size_t size) {
  finish();
  const std::span<const std::int32_t> ids = merger_.encode_long({word, size});
  ids_->insert(ids_->end(), ids.begin(), ids.end());
}

}  // namespace tera
