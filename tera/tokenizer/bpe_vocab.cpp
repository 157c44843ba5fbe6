#include "tera/tokenizer/bpe_vocab.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "tera/base/error.h"
#include "tera/tokenizer/byte_level.h"
#include "tera/tokenizer/unicode.h"

namespace tera {

namespace {

std::uint64_t hash_spelling(std::string_view text) {
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
  keep_tokens(data);
  for (unsigned byte = 0; byte < 256; ++byte) {
    const char character = static_cast<char>(byte);
    byte_ids_[byte] = characters_are_bytes_ || byte < 128 ? find(std::string_view(&character, 1)) : none;
    fallback_ids_[byte] = byte_fallback_ ? find(byte_token(byte)) : none;
  }
  if (data.merges_by_id)
    derive_merges();
  else
    keep_merges(data);
}

void BpeVocab::keep_tokens(const BpeData& data) {
  require_user(data.tokens.size() < std::size_t{1} << 28, "a vocabulary of {} tokens is too large", data.tokens.size());
  token_slots_.assign(std::bit_ceil(data.tokens.size() * 2 + 2), none);
  const std::size_t mask = token_slots_.size() - 1;
  token_ends_.reserve(data.tokens.size());
  for (const std::string& token : data.tokens) {
    const Id id = static_cast<Id>(token_ends_.size());
    // What is not spelled in the byte alphabet no word can reach: it is an added token.
    const std::string bytes = data.byte_level ? from_byte_level(token).value_or(std::string()) : token;
    spellings_ += bytes;
    require_user(spellings_.size() < std::numeric_limits<std::uint32_t>::max(), "the tokens are longer than 4 GiB");
    token_ends_.push_back(static_cast<std::uint32_t>(spellings_.size()));
    if (bytes.empty()) continue;
    std::size_t at = hash_spelling(bytes) & mask;
    while (token_slots_[at] != none && spelling(token_slots_[at]) != bytes) at = (at + 1) & mask;
    if (token_slots_[at] == none) token_slots_[at] = id;
  }
}

std::string_view BpeVocab::spelling(Id id) const {
  const std::size_t begin = id == 0 ? 0 : token_ends_[static_cast<std::size_t>(id) - 1];
  return std::string_view(spellings_).substr(begin, token_ends_[static_cast<std::size_t>(id)] - begin);
}

BpeVocab::Id BpeVocab::find(std::string_view text) const {
  const std::size_t mask = token_slots_.size() - 1;
  for (std::size_t at = hash_spelling(text) & mask;; at = (at + 1) & mask) {
    const Id id = token_slots_[at];
    if (id == none || spelling(id) == text) return id;
  }
}

void BpeVocab::reserve_pairs(std::size_t count) {
  pairs_.assign(std::bit_ceil(count * 2 + 2), Pair{});
  pair_mask_ = pairs_.size() - 1;
  pair_shift_ = 64 - std::countr_zero(pairs_.size());
}

void BpeVocab::add_pair(const Pair& pair) {
  std::size_t at = pair_slot(pair.left, pair.right);
  while (pairs_[at].left != none && (pairs_[at].left != pair.left || pairs_[at].right != pair.right))
    at = (at + 1) & pair_mask_;
  pairs_[at] = pair;  // of a pair that is listed twice the last counts, as in `tokenizers`
}

void BpeVocab::keep_merges(const BpeData& data) {
  require_user(data.merges.size() < std::size_t{1} << 28, "{} merges are too many", data.merges.size());
  reserve_pairs(data.merges.size());
  std::string both;
  for (std::size_t rank = 0; rank < data.merges.size(); ++rank) {
    const auto [left, right] = data.merges[rank];
    require_user(std::min(left, right) >= 0 && std::max(left, right) < size(),
                 "merge {} joins the tokens {} and {}; the vocabulary ends at {}", rank, left, right, size());
    const std::string_view tail = spelling(right);
    if (characters_are_bytes_ && (tail.empty() || spelling(left).empty())) continue;  // no word reaches these
    both = spelling(left);
    both += tail.substr(std::min(continuing_prefix_.size(), tail.size()));
    const Id id = find(both);
    if (id == none) fail_user("merge {} makes '{}', which is no token", rank, both);
    add_pair({left, right, static_cast<std::int32_t>(rank), id});
  }
}

// A token is ever made of one pair only: the two that are left when its spelling alone is merged as far as it goes.
// (What happens inside a stretch of a word does not depend on what stands around it until a merge crosses its ends.)
void BpeVocab::derive_merges() {
  for (int byte = 0; byte < 256; ++byte)
    require_user(byte_ids_[static_cast<std::size_t>(byte)] != none, "the vocabulary has no token for byte {}", byte);
  reserve_pairs(token_ends_.size());
  std::vector<Id> symbols;
  std::vector<std::uint32_t> begins;
  Pair last;
  for (Id id = 0; id < size(); ++id)
    if (spelling(id).size() > 1 && find_last_pair(id, symbols, begins, last)) add_pair(last);
}

// Merges by spelling, not by pairs_, since a token may be made of some of larger id.
bool BpeVocab::find_last_pair(Id token, std::vector<Id>& symbols, std::vector<std::uint32_t>& begins,
                              Pair& last) const {
  const std::string_view text = spelling(token);
  symbols_of(text, symbols);
  begins.resize(symbols.size() + 1);
  for (std::size_t i = 0; i < begins.size(); ++i) begins[i] = static_cast<std::uint32_t>(i);
  while (symbols.size() > 1) {
    Id best = none;
    std::size_t at = 0;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      const Id id = find(text.substr(begins[i], begins[i + 2] - begins[i]));
      if (id != none && (best == none || id < best)) best = id, at = i;
    }
    if (best == none) return false;
    if (symbols.size() == 2) {
      last = {symbols[0], symbols[1], token, token};
      return true;
    }
    symbols[at] = best;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    begins.erase(begins.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
  return false;
}

void BpeVocab::symbols_of(std::string_view word, std::vector<Id>& symbols) const {
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
    const Id id = character.size() == 1 ? byte_ids_[static_cast<unsigned char>(character[0])] : find(character);
    at += bytes;
    if (id != none) {
      if (waiting != none) symbols.push_back(waiting);
      waiting = none;
      symbols.push_back(id);
      continue;
    }
    // As in `tokenizers`: bytes overtake an unknown token that waits, and without one the character is lost.
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

bool BpeVocab::always_known() const {
  const std::array<Id, 256>& ids = characters_are_bytes_ ? byte_ids_ : fallback_ids_;
  return std::find(ids.begin(), ids.end(), none) == ids.end();
}

}  // namespace tera
