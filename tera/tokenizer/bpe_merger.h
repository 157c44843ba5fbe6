#pragma once
// Merges the symbols of one word. Holds the scratch space of one thread.

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

  void merge_short();
  void merge_long();
  void push(std::uint32_t at);

  const BpeVocab& vocab_;
  std::vector<Id> symbols_;
  // Of symbol i and its right neighbour.
  std::vector<std::int32_t> ranks_;
  std::vector<Id> unions_;
  // For long words: a list through the symbols, and a heap of (rank, place) with the smallest on top.
  std::vector<std::uint32_t> before_, after_;
  std::vector<std::uint64_t> heap_;
};

}  // namespace tera
