#include "tera/tokenizer/bpe/bpe_vocab.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "tera/base/error.h"
#include "tera/base/utf8.h"
#include "tera/tokenizer/bpe/byte_level.h"
#include "tera/tokenizer/unicode/unicode.h"

namespace tera {

namespace {

std::string byte_token(unsigned byte) { return fmt::format("<0x{:02X}>", byte); }

std::string in_bytes(const std::string& spelling, const char* what) {
  std::optional<std::string> bytes = from_byte_level(spelling);
  if (!bytes) fail_user("the {} '{}' of a byte-level vocabulary is not spelled in its alphabet", what, spelling);
  return std::move(*bytes);
}

}  // namespace

BpeVocab::BpeVocab(const BpeData& data)
    : characters_are_bytes_(data.byte_level || data.merges_by_id),
      ignore_merges_(data.ignore_merges),
      byte_fallback_(data.byte_fallback),
      fuse_unk_(data.fuse_unk),
      unk_(data.unk.value_or(none)),
      continuing_prefix_(data.continuing_subword_prefix),
      word_suffix_(data.end_of_word_suffix) {
  if (data.byte_level) {
    continuing_prefix_ = in_bytes(continuing_prefix_, "continuing_subword_prefix");
    word_suffix_ = in_bytes(word_suffix_, "end_of_word_suffix");
  }
  // A word never has more symbols than bytes, which with these it would.
  require_user(!byte_fallback_ || (continuing_prefix_.empty() && word_suffix_.empty()),
               "byte_fallback together with continuing_subword_prefix or end_of_word_suffix is not supported");
  keep_tokens(data);
  for (unsigned byte = 0; byte < 256; ++byte) {
    const char character = static_cast<char>(byte);
    byte_ids_[byte] = characters_are_bytes_ || byte < 128 ? find(std::string_view(&character, 1)) : none;
    fallback_ids_[byte] = byte_fallback_ ? find(byte_token(byte)) : none;
  }
  plain_bytes_ = characters_are_bytes_ && always_known() && continuing_prefix_.empty() && word_suffix_.empty();
  if (data.merges_by_id)
    derive_merges();
  else
    keep_merges(data);
  fill_byte_ranks();
}

void BpeVocab::keep_tokens(const BpeData& data) {
  require_user(data.tokens.size() <= std::size_t{1} << id_bits, "a vocabulary of {} tokens is too large (at most {})",
               data.tokens.size(), 1 << id_bits);
  token_slots_.assign(std::bit_ceil(data.tokens.size() * 2 + 2), TokenSlot{});
  const std::size_t mask = token_slots_.size() - 1;
  token_ends_.reserve(data.tokens.size());
  for (const std::string& token : data.tokens) {
    const Id id = static_cast<Id>(token_ends_.size());
    // No word can reach a token that is not spelled in the byte alphabet: it is an added token.
    const std::string bytes = data.byte_level ? from_byte_level(token).value_or(std::string()) : token;
    spellings_ += bytes;
    require_user(spellings_.size() < std::numeric_limits<std::uint32_t>::max(), "the tokens are longer than 4 GiB");
    token_ends_.push_back(static_cast<std::uint32_t>(spellings_.size()));
    if (bytes.empty() || find(bytes) != none) continue;
    const std::uint64_t hash = hash_of(bytes);
    std::size_t at = hash & mask;
    while (token_slots_[at].id != none) at = (at + 1) & mask;
    token_slots_[at] = {static_cast<std::uint32_t>(hash >> 32), id};
  }
}

std::string_view BpeVocab::spelling(Id id) const {
  const std::size_t begin = id == 0 ? 0 : token_ends_[static_cast<std::size_t>(id) - 1];
  return std::string_view(spellings_).substr(begin, token_ends_[static_cast<std::size_t>(id)] - begin);
}

std::uint64_t BpeVocab::hash_of(std::string_view text) {
  std::uint64_t hash = text.size() * 0x9e3779b97f4a7c15ULL;
  const auto mix = [&hash](std::uint64_t word) {
    hash = (hash ^ word) * 0xff51afd7ed558ccdULL;
    hash ^= hash >> 32;
  };
  while (text.size() >= 8) {
    std::uint64_t word;
    std::memcpy(&word, text.data(), 8);
    mix(word);
    text.remove_prefix(8);
  }
  std::uint64_t word = 0;
  std::memcpy(&word, text.data(), text.size());
  mix(word);
  return hash;
}

BpeVocab::Id BpeVocab::find(std::string_view text, std::uint64_t hash) const {
  const std::size_t mask = token_slots_.size() - 1;
  for (std::size_t at = hash & mask;; at = (at + 1) & mask) {
    const TokenSlot slot = token_slots_[at];
    if (slot.id == none || (slot.check == static_cast<std::uint32_t>(hash >> 32) && spelling(slot.id) == text))
      return slot.id;
  }
}

void BpeVocab::reserve_pairs(std::size_t count) {
  pairs_.assign(std::bit_ceil(count * 2 + 2), no_pair);
  pair_mask_ = pairs_.size() - 1;
  pair_shift_ = key_bits - std::countr_zero(pairs_.size());
  unions_.reserve(count);
}

void BpeVocab::add_pair(Id left, Id right, Rank rank, Id id) {
  const std::uint64_t key = pair_key(left, right);
  std::size_t at = pair_slot(key);
  while (pairs_[at] != no_pair && pairs_[at] >> rank_bits != key) at = (at + 1) & pair_mask_;
  // Where a pair is listed twice, the last counts, as in `tokenizers`.
  pairs_[at] = key << rank_bits | static_cast<std::uint64_t>(rank);
  unions_.resize(static_cast<std::size_t>(rank) + 1, none);
  unions_.back() = id;
}

void BpeVocab::keep_merges(const BpeData& data) {
  require_user(data.merges.size() <= std::size_t{1} << rank_bits, "{} merges are too many (at most {})",
               data.merges.size(), 1 << rank_bits);
  reserve_pairs(data.merges.size());
  std::string both;
  for (std::size_t rank = 0; rank < data.merges.size(); ++rank) {
    const auto [left, right] = data.merges[rank];
    require_user(std::min(left, right) >= 0 && std::max(left, right) < size(),
                 "merge {} joins the tokens {} and {}; the vocabulary ends at {}", rank, left, right, size());
    const std::string_view tail = spelling(right);
    if (tail.empty() || spelling(left).empty()) continue;  // no word reaches what is not in the byte alphabet
    both = spelling(left);
    both += tail.substr(std::min(continuing_prefix_.size(), tail.size()));
    const Id id = find(both);
    if (id == none) fail_user("merge {} makes '{}', which is no token", rank, mend_utf8(both));
    add_pair(left, right, static_cast<Rank>(rank), id);
    for (const Id part : {left, right})
      if (byte_fallback_ && spelling(part).starts_with("<0x")) merges_fallback_ = true;
  }
}

namespace {

// Finds the two symbols that the bytes of a token come down to, if they do.
class LastPair {
 public:
  using Id = BpeVocab::Id;
  explicit LastPair(const BpeVocab& vocab) : vocab_(vocab) {}

  // Finds the halves by the merges that the vocabulary has so far, which are those of smaller ids.
  bool find(std::string_view text, Id& left, Id& right) {
    symbols_.clear();
    ranks_.clear();
    for (const char byte : text) symbols_.push_back(vocab_.byte_id(static_cast<unsigned char>(byte)));
    for (std::size_t i = 0; i + 1 < symbols_.size(); ++i) ranks_.push_back(rank_at(i));
    while (symbols_.size() > 2) {
      const auto best = std::min_element(ranks_.begin(), ranks_.end());
      if (*best == BpeVocab::no_rank) return find_by_spelling(text, left, right);
      const auto at = static_cast<std::size_t>(best - ranks_.begin());
      symbols_[at] = vocab_.union_of(*best);
      symbols_.erase(symbols_.begin() + static_cast<std::ptrdiff_t>(at) + 1);
      ranks_.erase(best);
      if (at < ranks_.size()) ranks_[at] = rank_at(at);
      if (at > 0) ranks_[at - 1] = rank_at(at - 1);
    }
    left = symbols_[0];
    right = symbols_[1];
    return true;
  }

 private:
  BpeVocab::Rank rank_at(std::size_t i) const { return vocab_.rank_of(symbols_[i], symbols_[i + 1]); }

  // Finds the halves of a token that is made of tokens of larger id, by spelling.
  bool find_by_spelling(std::string_view text, Id& left, Id& right) {
    begins_.resize(text.size() + 1);
    for (std::size_t i = 0; i < begins_.size(); ++i) begins_[i] = i;
    const auto part = [&](std::size_t from, std::size_t to) { return vocab_.find(text.substr(from, to - from)); };
    unions_.clear();
    for (std::size_t i = 0; i + 2 < begins_.size(); ++i) unions_.push_back(part(i, i + 2));
    while (unions_.size() > 1) {
      // The smallest id; none compares as the largest.
      const auto best = std::min_element(unions_.begin(), unions_.end(), [](Id a, Id b) {
        return static_cast<std::uint32_t>(a) < static_cast<std::uint32_t>(b);
      });
      if (*best == BpeVocab::none) return false;
      const auto at = static_cast<std::size_t>(best - unions_.begin());
      begins_.erase(begins_.begin() + static_cast<std::ptrdiff_t>(at) + 1);
      unions_.erase(best);
      if (at < unions_.size()) unions_[at] = part(begins_[at], begins_[at + 2]);
      if (at > 0) unions_[at - 1] = part(begins_[at - 1], begins_[at + 1]);
    }
    left = part(0, begins_[1]);
    right = part(begins_[1], text.size());
    return true;
  }

  const BpeVocab& vocab_;
  std::vector<Id> symbols_;
  std::vector<BpeVocab::Rank> ranks_;
  std::vector<std::size_t> begins_;
  std::vector<Id> unions_;
};

}  // namespace

// A token is always made of one pair only: the two that are left when its spelling alone is merged as far as possible.
// (Merges inside a stretch of a word do not depend on its surroundings until a merge crosses its ends.)
void BpeVocab::derive_merges() {
  for (int byte = 0; byte < 256; ++byte)
    require_user(byte_ids_[static_cast<std::size_t>(byte)] != none, "the vocabulary has no token for byte {}", byte);
  reserve_pairs(token_ends_.size());
  LastPair last(*this);
  for (Id id = 0; id < size(); ++id) {
    Id left = none, right = none;
    if (spelling(id).size() > 1 && last.find(spelling(id), left, right)) add_pair(left, right, id, id);
  }
}

void BpeVocab::fill_byte_ranks() {
  if (!plain_bytes_) return;
  byte_ranks_.resize(std::size_t{256} * 256);
  for (std::size_t left = 0; left < 256; ++left)
    for (std::size_t right = 0; right < 256; ++right)
      byte_ranks_[left * 256 + right] = rank_of(byte_ids_[left], byte_ids_[right]);
}

void BpeVocab::symbols_of(std::string_view word, Id space, std::vector<Id>& symbols) const {
  symbols.clear();
  const bool plain = continuing_prefix_.empty() && word_suffix_.empty();
  Id waiting = none;  // an unknown token that may grow
  std::string affixed;
  for (std::size_t at = 0; at < word.size();) {
    const std::size_t bytes = characters_are_bytes_ ? 1 : front_character(word.substr(at)).bytes;
    std::string_view character = word.substr(at, bytes);
    if (!plain) {
      affixed = at == 0 ? std::string() : continuing_prefix_;
      affixed += character;
      if (at + bytes == word.size()) affixed += word_suffix_;
      character = affixed;
    }
    const Id id = character == " "        ? space
                  : character.size() == 1 ? byte_ids_[static_cast<unsigned char>(character[0])]
                                          : find(character);
    at += bytes;
    if (id != none) {
      if (waiting != none) symbols.push_back(waiting);
      waiting = none;
      symbols.push_back(id);
      continue;
    }
    // As in `tokenizers`: bytes come before a pending unknown token, and without one the character is lost.
    if (byte_fallback_ && add_by_bytes(character, symbols) != none) continue;
    if (waiting != none && !fuse_unk_) symbols.push_back(waiting);
    waiting = unk_;
  }
  if (waiting != none) symbols.push_back(waiting);
}

// The last id added; none, and nothing added, if a byte has no token.
BpeVocab::Id BpeVocab::add_by_bytes(std::string_view character, std::vector<Id>& symbols) const {
  for (const char byte : character)
    if (fallback_ids_[static_cast<unsigned char>(byte)] == none) return none;
  for (const char byte : character) symbols.push_back(fallback_ids_[static_cast<unsigned char>(byte)]);
  return symbols.back();
}

bool BpeVocab::can_be_cut() const {
  return always_known() && !ignore_merges_ && !merges_fallback_ && continuing_prefix_.empty() && word_suffix_.empty();
}

bool BpeVocab::always_known() const {
  const std::array<Id, 256>& ids = characters_are_bytes_ ? byte_ids_ : fallback_ids_;
  return std::find(ids.begin(), ids.end(), none) == ids.end();
}

}  // namespace tera
