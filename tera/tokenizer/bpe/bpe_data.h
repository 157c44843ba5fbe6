#pragma once
// A byte-pair encoding (BPE) as plain data, as a file describes it.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tera {

struct BpeData {
  std::vector<std::string> tokens;  // by id, as the file spells them; empty: no token has this id
  // Ids of the two halves, in order of priority. Their union is the token whose spelling is the concatenation of both.
  std::vector<std::pair<std::int32_t, std::int32_t>> merges;
  // Tokens are spelled in the alphabet of byte_level.h, one character per byte; words are given as plain text.
  bool byte_level = false;
  // Tokens are raw bytes and there are no merges: two neighbours merge if both together are a token, the one of
  // smallest id first (tiktoken).
  bool merges_by_id = false;
  bool ignore_merges = false;  // a word that is a token needs no merging
  bool byte_fallback = false;  // characters that are no token become <0x..> tokens
  bool fuse_unk = false;       // neighbouring unknown characters are one unknown token
  std::optional<std::int32_t> unk;
  std::string continuing_subword_prefix, end_of_word_suffix;
};

}  // namespace tera
