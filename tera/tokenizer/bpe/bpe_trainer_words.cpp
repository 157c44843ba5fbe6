#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "tera/base/error.h"
#include "tera/tokenizer/bpe/bpe_trainer.h"
#include "tera/tokenizer/bpe/bpe_vocab.h"
#include "tera/tokenizer/split_pattern_scan.h"

namespace tera {

// Open addressing; the words lie one after the other in blocks that never move.
struct WordCounts::Table {
  struct Slot {
    const char* text = nullptr;
    std::uint32_t size = 0, check = 0;
    std::uint64_t count = 0;
  };

  static constexpr std::size_t block_bytes = std::size_t{1} << 20;

  void add(std::string_view word, std::uint64_t count) {
    const std::uint64_t hash = BpeVocab::hash_of(word);
    const auto check = static_cast<std::uint32_t>(hash >> 32);
    for (std::size_t at = hash & (slots.size() - 1);; at = (at + 1) & (slots.size() - 1)) {
      Slot& slot = slots[at];
      if (slot.text == nullptr) {
        slot = {keep(word), static_cast<std::uint32_t>(word.size()), check, count};
        if (++used * 2 > slots.size()) grow();
        return;
      }
      if (slot.check == check && slot.size == word.size() && std::memcmp(slot.text, word.data(), word.size()) == 0) {
        slot.count += count;
        return;
      }
    }
  }

  const char* keep(std::string_view word) {
    if (blocks.empty() || block_used + word.size() > block_size) {
      block_size = std::max(block_bytes, word.size());
      blocks.push_back(std::make_unique<char[]>(block_size));
      block_used = 0;
    }
    char* const place = blocks.back().get() + block_used;
    std::memcpy(place, word.data(), word.size());
    block_used += word.size();
    return place;
  }

  void grow() {
    std::vector<Slot> old(slots.size() * 2);
    old.swap(slots);
    for (const Slot& slot : old) {
      if (slot.text == nullptr) continue;
      std::size_t at = BpeVocab::hash_of({slot.text, slot.size}) & (slots.size() - 1);
      while (slots[at].text != nullptr) at = (at + 1) & (slots.size() - 1);
      slots[at] = slot;
    }
  }

  std::vector<Slot> slots = std::vector<Slot>(std::size_t{1} << 12);
  std::vector<std::unique_ptr<char[]>> blocks;
  std::size_t used = 0, block_used = 0, block_size = 0;
};

WordCounts::WordCounts() : table_(std::make_unique<Table>()) {}
WordCounts::WordCounts(WordCounts&&) noexcept = default;
WordCounts& WordCounts::operator=(WordCounts&&) noexcept = default;
WordCounts::~WordCounts() = default;

void WordCounts::add_text(SplitPattern pattern, std::string_view text) {
  require_user(text.size() < std::size_t{1} << 32, "a text of {} bytes is too long to learn from", text.size());
  split::with_scanner(pattern, [&](auto scanner) {
    const char* const end = text.data() + text.size();
    for (const char* at = text.data(); at < end;) {
      const char* const next = decltype(scanner)::next(at, end);
      table_->add({at, static_cast<std::size_t>(next - at)}, 1);
      at = next;
    }
  });
}

void WordCounts::add(std::string_view word, std::uint64_t count) { table_->add(word, count); }

void WordCounts::add(const WordCounts& others) {
  for (const Table::Slot& slot : others.table_->slots)
    if (slot.text != nullptr) table_->add({slot.text, slot.size}, slot.count);
}

std::size_t WordCounts::size() const { return table_->used; }

std::vector<WordCounts::Word> WordCounts::sorted() const {
  std::vector<Word> words;
  words.reserve(table_->used);
  for (const Table::Slot& slot : table_->slots)
    if (slot.text != nullptr) words.push_back({{slot.text, slot.size}, slot.count});
  std::sort(words.begin(), words.end(), [](const Word& a, const Word& b) { return a.text < b.text; });
  return words;
}

WordCounts count_words(const BpeTrainOptions& options, FunctionRef<bool(std::string&)> next) {
  std::vector<WordCounts> counts(std::max(options.threads, 1U));
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&](WordCounts& thread_counts) {
    std::string text;
    while (true) {
      {
        const std::lock_guard lock(mutex);
        if (failure) return;
        try {
          if (!next(text)) return;
        } catch (...) {
          failure = std::current_exception();
          return;
        }
      }
      thread_counts.add_text(options.pattern, text);
    }
  };
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 1; i < counts.size(); ++i) threads.emplace_back(work, std::ref(counts[i]));
    work(counts[0]);
  }
  if (failure) std::rethrow_exception(failure);
  for (std::size_t i = 1; i < counts.size(); ++i) counts[0].add(counts[i]);
  return std::move(counts[0]);
}

}  // namespace tera
