#pragma once
// Properties of code points. The versions of Unicode are those that the reference tokenizers follow, each
// for its own purpose: 16 for classes of regular expressions, 17 for numeric characters, 8 for BERT's rules.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tera/tokenizer/unicode/unicode_tables.h"

namespace tera {

inline constexpr std::string_view space_mark = "\u2581";  // how SentencePiece writes a space within a token
inline constexpr char32_t space_mark_code = 0x2581;

// In alphabetical order, so that those of one group are neighbours.
// clang-format off
enum class Category : std::uint8_t {
  cc, cf, cn, co, cs,          // other
  ll, lm, lo, lt, lu,          // letters
  mc, me, mn,                  // marks
  nd, nl, no,                  // numbers
  pc, pd, pe, pf, pi, po, ps,  // punctuation
  sc, sk, sm, so,              // symbols
  zl, zp, zs                   // separators
};
// clang-format on

namespace unicode {

constexpr char32_t limit = 0x110000;
constexpr char32_t replacement = 0xfffd;

inline std::uint8_t kind(char32_t c) {
  if (c >= limit) return static_cast<std::uint8_t>(Category::cn);
  return unicode_tables::kind_values[std::size_t{unicode_tables::kind_block[c >> 7]} << 7 | (c & 127)];
}

inline bool between(Category category, Category first, Category last) { return category >= first && category <= last; }

}  // namespace unicode

// Unicode 16, as \p{..} of `tokenizers` and tiktoken.
inline Category category(char32_t c) { return static_cast<Category>(unicode::kind(c) & 31); }
inline bool is_letter(char32_t c) { return unicode::between(category(c), Category::ll, Category::lu); }
inline bool is_mark(char32_t c) { return unicode::between(category(c), Category::mc, Category::mn); }
inline bool is_number(char32_t c) { return unicode::between(category(c), Category::nd, Category::no); }
inline bool is_punctuation(char32_t c) { return unicode::between(category(c), Category::pc, Category::ps); }
inline bool is_symbol(char32_t c) { return unicode::between(category(c), Category::sc, Category::so); }

// The property White_Space: \s of regular expressions, and what Rust's strings are trimmed and split by.
inline bool is_white_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
  return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
         c == 0x202f || c == 0x205f || c == 0x3000;
}

// \w of Rust's regular expressions, which the pre-tokenizer Whitespace uses: letters, marks, decimal and letter
// numbers, connectors, circled letters, and the two joiners.
bool is_word_character(char32_t c);

// Numeric characters of Unicode 17 (the pre-tokenizer Digits).
inline bool is_numeric(char32_t c) { return unicode::kind(c) & 32; }

// Punctuation of Unicode 8 and all of ASCII that is neither letter, digit, space nor control (the pre-tokenizers
// Punctuation and BertPreTokenizer).
inline bool is_bert_punctuation(char32_t c) { return unicode::kind(c) & 64; }

// What BERT's clean_text removes: control, format and private characters of Unicode 8 but tab and line ends; U+FFFD.
inline bool is_bert_control(char32_t c) { return unicode::kind(c) & 128; }

struct Utf8Character {
  char32_t code;
  std::uint32_t bytes;
};

// The character at the front of text that is not empty. Text is assumed to be UTF-8; where it is not, U+FFFD of one
// byte, or some other code point below 0x110000: never a read past the end.
inline Utf8Character front_character(const char* text, std::size_t size) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto low = [&](std::size_t i) { return char32_t{byte(i)} & 63; };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xe0 && lead >= 0xc2 && size >= 2) return {(lead & 31U) << 6 | low(1), 2};
  if (lead < 0xf0 && lead >= 0xe0 && size >= 3) return {(lead & 15U) << 12 | low(1) << 6 | low(2), 3};
  if (lead < 0xf5 && lead >= 0xf0 && size >= 4) {
    const char32_t code = (lead & 7U) << 18 | low(1) << 12 | low(2) << 6 | low(3);
    if (code < unicode::limit) return {code, 4};
  }
  return {unicode::replacement, 1};
}
inline Utf8Character front_character(std::string_view text) { return front_character(text.data(), text.size()); }

// The character that ends at the end of text that is not empty.
Utf8Character back_character(std::string_view text);

// Writes up to four bytes and returns how many.
constexpr std::size_t utf8_bytes(char32_t code) { return code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4; }
std::size_t write_utf8(char32_t code, char* to);
void append_utf8(std::string& text, char32_t code);

}  // namespace tera
