#include "tera/tokenizer/bpe/bpe_merger.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>

#include "tera/base/error.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace tera {

namespace {

constexpr std::uint32_t nowhere = 0xffffffff;
constexpr std::int32_t no_key = std::numeric_limits<std::int32_t>::max();
constexpr int index_bits = 6;

// The smallest number of aligned groups of four.
std::int32_t smallest(const std::int32_t* numbers, std::size_t groups) {
#if defined(__SSE2__)
  const auto* at = reinterpret_cast<const __m128i*>(numbers);
  const auto smaller = [](__m128i a, __m128i b) {
    const __m128i less = _mm_cmplt_epi32(a, b);
    return _mm_or_si128(_mm_and_si128(less, a), _mm_andnot_si128(less, b));
  };
  __m128i least = _mm_load_si128(at);
  for (std::size_t i = 1; i < groups; ++i) least = smaller(_mm_load_si128(at + i), least);
  least = smaller(least, _mm_shuffle_epi32(least, 0x4e));
  least = smaller(least, _mm_shuffle_epi32(least, 0xb1));
  return _mm_cvtsi128_si32(least);
#else
  std::int32_t least = numbers[0];
  for (std::size_t i = 1; i < groups * 4; ++i) least = std::min(least, numbers[i]);
  return least;
#endif
}

std::int32_t merge_key(BpeVocab::Rank rank, std::size_t at) {
  return rank == BpeVocab::no_rank ? no_key : (rank << index_bits | static_cast<std::int32_t>(at));
}

}  // namespace

bool BpeJob::begin(const BpeVocab& vocab, const BpeWord& of, Id space, std::vector<Id>& scratch) {
  const std::string_view word = of.text;
  if (vocab.ignore_merges()) {
    symbols_[0] = vocab.find(word, of.hash);
    if (symbols_[0] != BpeVocab::none) {
      start(1);
      return true;
    }
  }
  if (vocab.plain_bytes()) {
    if (word.size() > max_symbols) return false;
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(word[i]); };
    for (std::size_t i = 0; i < word.size(); ++i) symbols_[i] = vocab.byte_id(byte(i));
    for (std::size_t i = 0; i + 1 < word.size(); ++i) keys_[i] = merge_key(vocab.byte_rank(byte(i), byte(i + 1)), i);
    start(word.size());
    return true;
  }
  vocab.symbols_of(word, space, scratch);
  if (scratch.size() > max_symbols) return false;
  std::copy(scratch.begin(), scratch.end(), symbols_.begin());
  for (std::size_t i = 0; i + 1 < scratch.size(); ++i)
    keys_[i] = merge_key(vocab.rank_of(symbols_[i], symbols_[i + 1]), i);
  start(scratch.size());
  return true;
}

void BpeJob::start(std::size_t count) {
  left_ = count == max_symbols ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
  groups_ = std::max<std::size_t>((count + 3) / 4, 1);
  for (std::size_t i = count == 0 ? 0 : count - 1; i < groups_ * 4; ++i) keys_[i] = no_key;
  best_ = no_key;
  chosen_ = false;
}

bool BpeJob::advance(const BpeVocab& vocab) {
  if (chosen_) {
    merge(vocab);
    chosen_ = false;
    return true;
  }
  return choose(vocab);
}

// The second half of the last merge, which finds the ranks beside the new symbol, and the first half of the next one,
// which chooses it.
bool BpeJob::choose(const BpeVocab& vocab) {
  if (best_ != no_key) {
    const auto at = static_cast<std::size_t>(best_ & (max_symbols - 1));
    const std::uint64_t before = left_ & ((std::uint64_t{1} << at) - 1);
    look(vocab, at);
    if (before != 0) look(vocab, static_cast<std::size_t>(63 - std::countl_zero(before)));
  }
  best_ = smallest(keys_.data(), groups_);
  if (best_ == no_key) {
    keep();
    return false;
  }
  vocab.prefetch_union(best_ >> index_bits);
  chosen_ = true;
  return true;
}

void BpeJob::look(const BpeVocab& vocab, std::size_t at) {
  const std::uint64_t after = left_ & (~std::uint64_t{1} << at);
  if (after == 0)
    keys_[at] = no_key;
  else
    keys_[at] = merge_key(vocab.rank_of(symbols_[at], symbols_[static_cast<std::size_t>(std::countr_zero(after))]), at);
}

void BpeJob::merge(const BpeVocab& vocab) {
  const auto at = static_cast<std::size_t>(best_ & (max_symbols - 1));
  const Id both = vocab.union_of(best_ >> index_bits);
  const int gone = std::countr_zero(left_ & (~std::uint64_t{1} << at));
  left_ &= ~(std::uint64_t{1} << gone);
  symbols_[at] = both;
  keys_[static_cast<std::size_t>(gone)] = no_key;
  const std::uint64_t before = left_ & ((std::uint64_t{1} << at) - 1), after = left_ & (~std::uint64_t{1} << at);
  if (after != 0) vocab.prefetch_rank(both, symbols_[static_cast<std::size_t>(std::countr_zero(after))]);
  if (before != 0) vocab.prefetch_rank(symbols_[static_cast<std::size_t>(63 - std::countl_zero(before))], both);
}

void BpeJob::keep() {
  kept_ = 0;
  for (; left_ != 0; left_ &= left_ - 1)
    symbols_[kept_++] = symbols_[static_cast<std::size_t>(std::countr_zero(left_))];
}

void BpeMerger::encode(std::span<const BpeWord> words) {
  std::array<BpeJob*, max_jobs> running;
  std::size_t count = 0;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (!jobs_[i].begin(vocab_, words[i], space_, symbols_)) fail("a word of too many symbols");
    running[count++] = &jobs_[i];
  }
  while (count > 0) {
    std::size_t still = 0;
    for (std::size_t i = 0; i < count; ++i) {
      running[still] = running[i];
      if (running[i]->advance(vocab_)) ++still;
    }
    count = still;
  }
}

std::span<const std::int32_t> BpeMerger::encode_long(std::string_view word) {
  if (vocab_.ignore_merges()) {
    const Id id = vocab_.find(word);
    if (id != BpeVocab::none) {
      symbols_.assign(1, id);
      return symbols_;
    }
  }
  vocab_.symbols_of(word, space_, symbols_);
  merge_long();
  return symbols_;
}

void BpeMerger::push(std::uint32_t at) {
  ranks_[at] = vocab_.rank_of(symbols_[at], symbols_[after_[at]]);
  if (ranks_[at] == BpeVocab::no_rank) return;
  heap_.push_back(std::uint64_t{static_cast<std::uint32_t>(ranks_[at])} << 32 | at);
  std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
}

void BpeMerger::merge_long() {
  const auto count = static_cast<std::uint32_t>(symbols_.size());
  ranks_.assign(count, BpeVocab::no_rank);
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
    const auto rank = static_cast<Rank>(top >> 32);
    if (ranks_[at] != rank) continue;  // the symbol has merged since
    const std::uint32_t gone = after_[at];
    symbols_[at] = vocab_.union_of(rank);
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
