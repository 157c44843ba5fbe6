#pragma once
// The tokens and merges of a byte-pair encoding in the form that encoding needs. Shared by all threads.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tera/tokenizer/bpe/bpe_data.h"

namespace tera {

class BpeVocab {
 public:
  using Id = std::int32_t;
  using Rank = std::int32_t;
  static constexpr Id none = -1;
  static constexpr int id_bits = 21, rank_bits = 22;  // sizes for the largest vocabulary
  static constexpr Rank no_rank = 1 << rank_bits;     // the two do not merge

  explicit BpeVocab(const BpeData& data);

  // The token with this spelling, or none. With a byte-level vocabulary spelling means bytes.
  Id find(std::string_view spelling) const { return find(spelling, hash_of(spelling)); }
  Id find(std::string_view spelling, std::uint64_t hash) const;
  static std::uint64_t hash_of(std::string_view spelling);
  void prefetch_token(std::uint64_t hash) const { __builtin_prefetch(&token_slots_[hash & (token_slots_.size() - 1)]); }
  // The rank of the merge of two neighbours, and the token that they become.
  Rank rank_of(Id left, Id right) const {
    const std::uint64_t key = pair_key(left, right);
    for (std::size_t at = pair_slot(key);; at = (at + 1) & pair_mask_) {
      const std::uint64_t pair = pairs_[at];
      if (pair >> rank_bits == key) return static_cast<Rank>(pair & (no_rank - 1));
      if (pair == no_pair) return no_rank;
    }
  }
  void prefetch_rank(Id left, Id right) const { __builtin_prefetch(&pairs_[pair_slot(pair_key(left, right))]); }
  void prefetch_union(Rank rank) const { __builtin_prefetch(&unions_[static_cast<std::size_t>(rank)]); }
  Id union_of(Rank rank) const { return unions_[static_cast<std::size_t>(rank)]; }
  // The rank of the merge of two single bytes, where characters are bytes.
  Rank byte_rank(unsigned char left, unsigned char right) const { return byte_ranks_[left * 256U + right]; }
  Id byte_id(unsigned char byte) const { return byte_ids_[byte]; }

  // Sets `symbols` to those of a word before any merge; `space` is the symbol of a space.
  void symbols_of(std::string_view word, Id space, std::vector<Id>& symbols) const;

  bool ignore_merges() const { return ignore_merges_; }
  bool plain_bytes() const { return plain_bytes_; }  // symbols of a word are its bytes, each with an id
  // Whether a word may be cut where no merge crosses, and its parts encoded alone: symbols of characters depend neither
  // on their position nor on their neighbours.
  bool can_be_cut() const;
  std::span<const Id> unions() const { return unions_; }  // results of merges; none for those that no word can reach
  std::string_view spelling(Id id) const;
  Id size() const { return static_cast<Id>(token_ends_.size()); }

 private:
  // A pair and its rank in one number: the hashed pair, then the rank.
  static constexpr std::uint64_t no_pair = ~std::uint64_t{0};
  static constexpr int key_bits = 2 * id_bits;
  struct TokenSlot {
    std::uint32_t check = 0;  // bits of the hash that the index of the slot does not have
    Id id = none;
  };

  static std::uint64_t pair_key(Id left, Id right) {
    const std::uint64_t both = static_cast<std::uint64_t>(left) << id_bits | static_cast<std::uint64_t>(right);
    return (both * 0x1e3779b97f4a7c15ULL) & ((std::uint64_t{1} << key_bits) - 1);  // odd, so it is a bijection
  }
  std::size_t pair_slot(std::uint64_t key) const { return static_cast<std::size_t>(key >> pair_shift_); }
  void keep_tokens(const BpeData& data);
  void keep_merges(const BpeData& data);
  void derive_merges();
  void reserve_pairs(std::size_t count);
  void add_pair(Id left, Id right, Rank rank, Id id);
  void fill_byte_ranks();
  bool always_known() const;  // no word gives the unknown token
  Id add_by_bytes(std::string_view character, std::vector<Id>& symbols) const;

  bool characters_are_bytes_, ignore_merges_, byte_fallback_, fuse_unk_, plain_bytes_ = false, merges_fallback_ = false;
  Id unk_;
  std::string continuing_prefix_, word_suffix_;
  std::string spellings_;                  // spellings of all tokens, one after the other
  std::vector<std::uint32_t> token_ends_;  // in spellings_, by id
  std::vector<TokenSlot> token_slots_;     // open addressing by spelling
  std::vector<std::uint64_t> pairs_;       // open addressing
  std::vector<Id> unions_;                 // by rank
  std::vector<Rank> byte_ranks_;           // [left, right]
  std::size_t pair_mask_ = 0;
  int pair_shift_ = 0;
  std::array<Id, 256> byte_ids_;      // ids of single bytes (ASCII only where characters are not bytes)
  std::array<Id, 256> fallback_ids_;  // ids of <0x..>
};

}  // namespace tera
