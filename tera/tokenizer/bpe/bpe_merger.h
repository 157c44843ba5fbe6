#pragma once
// Merges the symbols of words (BPE). Holds the scratch space of one thread.

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "tera/tokenizer/bpe/bpe_vocab.h"

namespace tera {

struct BpeWord {
  std::string_view text;
  std::uint64_t hash = 0;  // hash of the text, where the vocabulary ignores merges
};

// A word of few symbols that is being merged. Symbols are not moved; bits say which are left.
class BpeJob {
 public:
  using Id = BpeVocab::Id;
  static constexpr std::size_t max_symbols = 64;

  // False if the word has too many symbols.
  bool begin(const BpeVocab& vocab, const BpeWord& word, Id space, std::vector<Id>& scratch);
  // Does half a merge and prefetches the memory that the next half needs; false when the word is done.
  bool advance(const BpeVocab& vocab);
  std::span<const Id> ids() const { return {symbols_.data(), kept_}; }

 private:
  void start(std::size_t count);
  void look(const BpeVocab& vocab, std::size_t at);
  bool choose(const BpeVocab& vocab);
  void merge(const BpeVocab& vocab);
  void keep();

  std::array<Id, max_symbols> symbols_;
  // For each symbol and its right neighbour the rank in the high bits and the index in the low ones, so that the
  // smallest key merges next.
  alignas(16) std::array<std::int32_t, max_symbols + 4> keys_;
  std::uint64_t left_ = 0;  // bits of the symbols that are left
  std::size_t groups_ = 0;  // groups of four keys
  std::size_t kept_ = 0;
  std::int32_t best_ = 0;
  bool chosen_ = false;
};

class BpeMerger {
 public:
  static constexpr std::size_t max_jobs = 16;

  // `space` is the token that a space begins as.
  BpeMerger(const BpeVocab& vocab, BpeVocab::Id space) : vocab_(vocab), space_(space) {}

  // Merges at most max_jobs words side by side, so that they wait for memory together. Each has at most
  // BpeJob::max_symbols bytes.
  void encode(std::span<const BpeWord> words);
  std::span<const std::int32_t> ids(std::size_t word) const { return jobs_[word].ids(); }

  // The ids of one word of any length, valid until the next call.
  std::span<const std::int32_t> encode_long(std::string_view word);

  // Call it some time before encode().
  BpeWord announce(std::string_view word) const {
    if (!vocab_.ignore_merges()) return {word};
    const std::uint64_t hash = BpeVocab::hash_of(word);
    vocab_.prefetch_token(hash);
    return {word, hash};
  }

 private:
  using Id = BpeVocab::Id;
  using Rank = BpeVocab::Rank;

  void merge_long();
  void push(std::uint32_t at);

  const BpeVocab& vocab_;
  const Id space_;
  std::array<BpeJob, max_jobs> jobs_;
  // Long words: a linked list of symbols, ranks, and a heap of (rank, index) with the smallest on top.
  std::vector<Id> symbols_;
  std::vector<Rank> ranks_;
  std::vector<std::uint32_t> before_, after_;
  std::vector<std::uint64_t> heap_;
};

}  // namespace tera
