#include "tera/tokenizer/bpe/token_index.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace tera {
namespace {

// Hashes eight bytes at a time; the upper half of a multiplication depends on all bits.
std::uint64_t hash_bytes(std::string_view text) {
  constexpr std::uint64_t factor = 0x9e3779b97f4a7c15ULL;
  std::uint64_t hash = text.size() * factor;
  const auto mix = [&](std::uint64_t word) {
    hash = (hash ^ word) * factor;
    hash ^= hash >> 29;
  };
  for (; text.size() >= sizeof(std::uint64_t); text.remove_prefix(sizeof(std::uint64_t))) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data(), sizeof word);
    mix(word);
  }
  std::uint64_t rest = 0;
  std::memcpy(&rest, text.data(), text.size());
  mix(rest);
  return hash >> 20 ^ hash;
}

}  // namespace

TokenIndex::TokenIndex(const std::vector<std::string>& tokens)
    : tokens_(tokens), slots_(std::bit_ceil(std::max<std::size_t>(tokens.size() * 2, 16)), -1) {
  for (std::size_t id = 0; id < tokens.size(); ++id)
    if (!tokens[id].empty()) slots_[place(tokens[id])] = static_cast<std::int32_t>(id);
}

std::size_t TokenIndex::place(std::string_view token) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = hash_bytes(token) & mask;
  while (slots_[slot] >= 0 && tokens_[static_cast<std::size_t>(slots_[slot])] != token) slot = (slot + 1) & mask;
  return slot;
}

std::int32_t TokenIndex::find(std::string_view token) const { return token.empty() ? -1 : slots_[place(token)]; }

}  // namespace tera
