#pragma once
// Added tokens (end of document and others), which are searched for in the text before the vocabulary's rules apply.

#include <array>
#include <bitset>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tera {

struct AddedToken {
  std::string content;
  std::int32_t id = -1;
  bool single_word = false;  // not inside a word
  bool lstrip = false;       // includes the white space before it
  bool rstrip = false;       // includes the white space after it
  bool normalized = true;    // matched after the normalizer, against the normalized content
  bool special = false;
};

// A part of a text: an added token, or text between two of them (id -1).
struct TextPart {
  std::size_t begin = 0, end = 0;
  std::int32_t id = -1;
};

// Finds tokens from left to right, at each position the longest.
class TokenFinder {
 public:
  struct Pattern {
    std::string text;  // not empty, unique
    AddedToken token;
  };
  explicit TokenFinder(std::span<const Pattern> patterns);

  bool empty() const { return tokens_.empty(); }
  // Replaces `parts`. Text without tokens is one part; an empty text has none.
  void split(std::string_view text, std::vector<TextPart>& parts) const;

 private:
  struct Node {
    std::vector<std::pair<unsigned char, std::int32_t>> next;  // by byte
    std::int32_t token = -1;                                   // index into tokens_ of the pattern that ends here
  };
  struct Match {
    std::size_t begin = 0, end = 0;
    std::int32_t token = -1;
  };

  void add(std::string_view pattern, std::int32_t token);
  Match find(std::string_view text, std::size_t from) const;
  Match match_at(std::string_view text, std::size_t begin) const;
  std::size_t next_candidate(std::string_view text, std::size_t from) const;
  // Adds the match, with the text since the last part; nothing if it is not allowed there.
  void keep(std::string_view text, Match match, std::size_t& done, std::vector<TextPart>& parts) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;
  std::array<bool, 256> first_{};  // bytes that a pattern begins with
  std::bitset<65536> first_two_;   // pairs of bytes that one begins with, by (first, second)
  std::array<bool, 256> alone_{};  // patterns of one byte
  bool one_first_ = false;         // all patterns begin with the same byte
  char only_first_ = 0;            // that byte, if one_first_
};

}  // namespace tera
