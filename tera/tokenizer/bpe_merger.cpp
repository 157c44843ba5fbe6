#include "tera/tokenizer/bpe_merger.h"

#include <algorithm>
#include <cstring>
#include <functional>

namespace tera {

namespace {

constexpr std::size_t longest_short = 192;
constexpr std::uint32_t nowhere = 0xffffffff;

// The first of the smallest.
std::size_t smallest(const std::int32_t* ranks, std::size_t count) {
  std::int32_t least = ranks[0];
  for (std::size_t i = 1; i < count; ++i) least = std::min(least, ranks[i]);
  std::size_t at = 0;
  while (ranks[at] != least) ++at;
  return at;
}

}  // namespace

std::span<const std::int32_t> BpeMerger::encode(std::string_view word) {
  if (vocab_.ignore_merges()) {
    const Id id = vocab_.find(word);
    if (id != BpeVocab::none) {
      symbols_.assign(1, id);
      return symbols_;
    }
  }
  vocab_.symbols_of(word, symbols_);
  if (symbols_.size() > longest_short)
    merge_long();
  else if (symbols_.size() > 1)
    merge_short();
  return symbols_;
}

// Arrays without gaps: for few symbols, looking at all ranks beats any heap.
void BpeMerger::merge_short() {
  std::size_t count = symbols_.size();  // the last has no neighbour: its rank is no_rank for ever
  ranks_.resize(longest_short + 1);
  unions_.resize(longest_short + 1);
  Id* const symbols = symbols_.data();
  std::int32_t* const ranks = ranks_.data();
  Id* const unions = unions_.data();
  const auto look = [&](std::size_t i) {
    const BpeVocab::Merge merge = vocab_.merge_of(symbols[i], symbols[i + 1]);
    ranks[i] = merge.rank;
    unions[i] = merge.id;
  };
  for (std::size_t i = 0; i + 1 < count; ++i) look(i);
  ranks[count - 1] = BpeVocab::no_rank;
  while (true) {
    const std::size_t at = smallest(ranks, count);
    if (ranks[at] == BpeVocab::no_rank) break;
    symbols[at] = unions[at];
    const std::size_t moved = count - at - 2;
    std::memmove(symbols + at + 1, symbols + at + 2, moved * sizeof(Id));
    std::memmove(ranks + at + 1, ranks + at + 2, moved * sizeof(std::int32_t));
    std::memmove(unions + at + 1, unions + at + 2, moved * sizeof(Id));
    --count;
    if (at > 0) look(at - 1);
    if (at + 1 < count)
      look(at);
    else
      ranks[at] = BpeVocab::no_rank;
  }
  symbols_.resize(count);
}

void BpeMerger::push(std::uint32_t at) {
  const BpeVocab::Merge merge = vocab_.merge_of(symbols_[at], symbols_[after_[at]]);
  ranks_[at] = merge.rank;
  unions_[at] = merge.id;
  if (merge.rank == BpeVocab::no_rank) return;
  heap_.push_back(std::uint64_t{static_cast<std::uint32_t>(merge.rank)} << 32 | at);
  std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
}

void BpeMerger::merge_long() {
  const auto count = static_cast<std::uint32_t>(symbols_.size());
  ranks_.assign(count, BpeVocab::no_rank);
  unions_.resize(std::max<std::size_t>(count, unions_.size()));
  before_.resize(count);
  after_.resize(count);
  heap_.clear();
  for (std::uint32_t i = 0; i < count; ++i) {
    before_[i] = i == 0 ? nowhere : i - 1;
    after_[i] = i + 1 == count ? nowhere : i + 1;
  }
  for (std::uint32_t i = 0; i + 1 < count; ++i) push(i);
  while (!heap_.empty()) {
    const std::uint64_t top = heap_.front();
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    heap_.pop_back();
    const auto at = static_cast<std::uint32_t>(top);
    // Of a place that has merged since, the rank is another.
    if (ranks_[at] != static_cast<std::int32_t>(top >> 32)) continue;
    const std::uint32_t gone = after_[at];
    symbols_[at] = unions_[at];
    symbols_[gone] = BpeVocab::none;
    ranks_[gone] = ranks_[at] = BpeVocab::no_rank;
    after_[at] = after_[gone];
    if (after_[at] != nowhere) {
      before_[after_[at]] = at;
      push(at);
    }
    if (before_[at] != nowhere) push(before_[at]);
  }
  std::erase(symbols_, BpeVocab::none);
}

}  // namespace tera
