#include "tera/tokenizer/bpe_merger.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace tera {

namespace {

constexpr std::uint32_t nowhere = 0xffffffff;
constexpr std::int32_t no_place = std::numeric_limits<std::int32_t>::max();
constexpr int place_bits = 6;

// Of numbers in groups of four, aligned.
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

std::int32_t place_number(BpeVocab::Rank rank, std::size_t at) {
  return rank == BpeVocab::no_rank ? no_place : (rank << place_bits | static_cast<std::int32_t>(at));
}

}  // namespace

std::span<const std::int32_t> BpeMerger::encode(std::string_view word) {
  if (vocab_.ignore_merges()) {
    short_symbols_[0] = vocab_.find(word);
    if (short_symbols_[0] != BpeVocab::none) return {short_symbols_.data(), 1};
  }
  if (vocab_.plain_bytes() && word.size() <= most_short) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(word[i]); };
    for (std::size_t i = 0; i < word.size(); ++i) short_symbols_[i] = vocab_.byte_id(byte(i));
    for (std::size_t i = 0; i + 1 < word.size(); ++i)
      places_[i] = place_number(vocab_.byte_rank(byte(i), byte(i + 1)), i);
    return merge_short(word.size());
  }
  vocab_.symbols_of(word, symbols_);
  if (symbols_.size() > most_short) {
    merge_long();
    return symbols_;
  }
  std::copy(symbols_.begin(), symbols_.end(), short_symbols_.begin());
  for (std::size_t i = 0; i + 1 < symbols_.size(); ++i)
    places_[i] = place_number(vocab_.rank_of(symbols_[i], symbols_[i + 1]), i);
  return merge_short(symbols_.size());
}

// Looking at all places each time beats any heap for so few. Symbols stay where they are; bits tell which are left.
std::span<const BpeVocab::Id> BpeMerger::merge_short(std::size_t count) {
  if (count == 0) return {};
  std::uint64_t left = count == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
  const std::size_t groups = (count + 3) / 4;
  for (std::size_t i = count - 1; i < groups * 4; ++i) places_[i] = no_place;
  while (true) {
    const std::int32_t best = smallest(places_.data(), groups);
    if (best == no_place) break;
    const auto at = static_cast<std::size_t>(best & (most_short - 1));
    const Id both = vocab_.union_of(best >> place_bits);
    std::uint64_t behind = left & (~std::uint64_t{1} << at);
    const int gone = std::countr_zero(behind);
    behind &= behind - 1;
    left &= ~(std::uint64_t{1} << gone);
    short_symbols_[at] = both;
    places_[static_cast<std::size_t>(gone)] = no_place;
    const std::uint64_t ahead = left & ((std::uint64_t{1} << at) - 1);
    places_[at] =
        behind == 0 ? no_place
                    : place_number(
                          vocab_.rank_of(both, short_symbols_[static_cast<std::size_t>(std::countr_zero(behind))]), at);
    if (ahead != 0) {
      const auto before = static_cast<std::size_t>(63 - std::countl_zero(ahead));
      places_[before] = place_number(vocab_.rank_of(short_symbols_[before], both), before);
    }
  }
  std::size_t kept = 0;
  for (; left != 0; left &= left - 1)
    short_symbols_[kept++] = short_symbols_[static_cast<std::size_t>(std::countr_zero(left))];
  return {short_symbols_.data(), kept};
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
    if (ranks_[at] != rank) continue;  // the place has merged since
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
