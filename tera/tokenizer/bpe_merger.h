#pragma once
// Merges the symbols of one word. Holds the scratch space of one thread.

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "tera/tokenizer/bpe_vocab.h"

namespace tera {

class BpeMerger {
 public:
  explicit BpeMerger(const BpeVocab& vocab) : vocab_(vocab) {}

  // The ids of a word, valid until the next call.
  std::span<const std::int32_t> encode(std::string_view word);

 private:
  using Id = BpeVocab::Id;
  using Rank = BpeVocab::Rank;
  static constexpr std::size_t most_short = 64;

  std::span<const Id> merge_short(std::size_t count);
  void merge_long();
  void push(std::uint32_t at);

  const BpeVocab& vocab_;
  // Short words: symbols, and for each and its right neighbour the rank above the place, so that the smallest number is
  // what merges next.
  std::array<Id, most_short + 1> short_symbols_;
  alignas(16) std::array<std::int32_t, most_short + 4> places_;
  // Long words: a list through the symbols, ranks, and a heap of (rank, place) with the smallest on top.
  std::vector<Id> symbols_;
  std::vector<Rank> ranks_;
  std::vector<std::uint32_t> before_, after_;
  std::vector<std::uint64_t> heap_;
};

}  // namespace tera
