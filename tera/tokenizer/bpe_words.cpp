#include "tera/tokenizer/bpe_words.h"

namespace tera {

void BpeWords::look_up() {
  std::array<std::int32_t, 4 * 32 + 4> found;
  std::int32_t* next = found.data();
  for (std::size_t i = 0; i < waiting_; ++i) {
    const Pending& pending = pending_[i];
    const WordCache::Entry* const entry = cache_.find(pending.line, pending.key);
    if (entry != nullptr && entry->count >= 0) [[likely]] {
      std::memcpy(next, entry->ids, sizeof(entry->ids) + sizeof(entry->count));  // the count is overwritten
      next += entry->count;
      continue;
    }
    const std::span<const std::int32_t> more = find_or_merge(pending, entry);
    ids_->insert(ids_->end(), found.data(), next);
    ids_->insert(ids_->end(), more.begin(), more.end());
    next = found.data();
  }
  ids_->insert(ids_->end(), found.data(), next);
  waiting_ = 0;
}

std::span<const std::int32_t> BpeWords::find_or_merge(const Pending& pending, const WordCache::Entry* entry) {
  const std::string_view word(pending.word, pending.size);
  if (entry != nullptr) {
    const std::span<const std::int32_t> ids = cache_.ids_elsewhere(*entry, word);
    if (!ids.empty()) return ids;
  }
  const std::span<const std::int32_t> ids = merger_.encode(word);
  cache_.insert(pending.line, pending.key, word, ids);
  return ids;
}

void BpeWords::add_long(const char* word, std::size_t size) {
  look_up();
  const std::span<const std::int32_t> ids = merger_.encode({word, size});
  ids_->insert(ids_->end(), ids.begin(), ids.end());
}

}  // namespace tera
