#pragma once
// Rewriting text by Unicode's rules, in the versions that `tokenizers` follows: normal forms of Unicode 9, lower case
// of Unicode 17. Text that stays as it is costs one look at its bytes.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tera {

enum class NormalForm : std::uint8_t { nfc, nfkc, nfd, nfkd };

void to_normal_form(NormalForm form, std::string& text);
// What becomes of the `start` bytes at the front of the text that stand for its first place (normalizer.h).
std::size_t start_in_normal_form(NormalForm form, std::string_view text, std::size_t start);

// A character of a rewritten text: in place of the next one before (0), beside the one before it (1), or in place of
// the next one and of -change others behind that.
struct Rewritten {
  char32_t code;
  std::int16_t change;
};
// How many bytes of the rewritten front stand for the first place, if `start` bytes of the text do.
std::size_t start_after(std::span<const Rewritten> front, std::string_view text, std::size_t start);

// Character by character: the sigma at the end of a word is as any other.
void to_lower_case(std::string& text);

// The lower case of a character, but for U+0130, which becomes two characters and stays itself here.
char32_t lower_case(char32_t c);

bool is_combining_mark(char32_t c);  // marks of Unicode 9, which StripAccents removes
bool is_bert_accent(char32_t c);     // marks of Unicode 8 that take no space, which BertNormalizer removes
bool is_cjk_ideograph(char32_t c);   // what BertNormalizer puts spaces around

}  // namespace tera
