#pragma once
// The tokens and merges of a byte-pair encoding in the form that encoding needs. Shared by all threads.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tera/tokenizer/bpe_data.h"

namespace tera {

class BpeVocab {
 public:
  using Id = std::int32_t;
  static constexpr Id none = -1;
  static constexpr std::int32_t no_rank = 0x7fffffff;

  struct Merge {
    std::int32_t rank;  // no_rank: the two do not merge
    Id id;
  };

  explicit BpeVocab(const BpeData& data);

  // The token spelled like this, or none. With a byte-level vocabulary spelling means bytes.
  Id find(std::string_view spelling) const;
  Merge merge_of(Id left, Id right) const {
    for (std::size_t at = pair_slot(left, right);; at = (at + 1) & pair_mask_) {
      const Pair& pair = pairs_[at];
      if (pair.left == left && pair.right == right) return {pair.rank, pair.id};
      if (pair.left == none) return {no_rank, none};
    }
  }
  // What a word begins with before anything merges; replaces what `symbols` holds.
  void symbols_of(std::string_view word, std::vector<Id>& symbols) const;

  bool ignore_merges() const { return ignore_merges_; }
  bool characters_are_bytes() const { return characters_are_bytes_; }
  // No word gives the unknown token, so that what was cut from a text gives the same ids alone.
  bool always_known() const;
  std::string_view spelling(Id id) const;
  Id size() const { return static_cast<Id>(token_ends_.size()); }

 private:
  struct Pair {
    Id left = none, right = none;
    std::int32_t rank = 0;
    Id id = none;
  };

  std::size_t pair_slot(Id left, Id right) const {
    const std::uint64_t key = std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
    return static_cast<std::size_t>((key * 0x9e3779b97f4a7c15ULL) >> pair_shift_);
  }
  void keep_tokens(const BpeData& data);
  void keep_merges(const BpeData& data);
  void derive_merges();
  void reserve_pairs(std::size_t count);
  void add_pair(const Pair& pair);
  Id add_by_bytes(std::string_view character, std::vector<Id>& symbols) const;
  bool find_last_pair(Id token, std::vector<Id>& symbols, std::vector<std::uint32_t>& begins, Pair& last) const;

  bool characters_are_bytes_, ignore_merges_, byte_fallback_, fuse_unk_;
  Id unk_;
  std::string continuing_prefix_, word_suffix_;
  std::string spellings_;                  // of all tokens, one after the other
  std::vector<std::uint32_t> token_ends_;  // in spellings_, by id
  std::vector<Id> token_slots_;            // open addressing by spelling
  std::vector<Pair> pairs_;                // open addressing by both ids
  std::size_t pair_mask_ = 0;
  int pair_shift_ = 63;
  std::array<Id, 256> byte_ids_;      // of single bytes (ASCII only where characters are not bytes)
  std::array<Id, 256> fallback_ids_;  // of <0x..>
};

}  // namespace tera
