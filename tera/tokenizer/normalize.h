#pragma once
// Rewriting text by Unicode's rules, in the versions that `tokenizers` follows: normal forms of Unicode 9, lower case
// of Unicode 17. Text that stays as it is costs one look at its bytes.

#include <cstdint>
#include <string>
#include <string_view>

namespace tera {

enum class NormalForm : std::uint8_t { nfc, nfkc, nfd, nfkd };

void to_normal_form(NormalForm form, std::string& text);

// Character by character: the sigma at the end of a word is as any other.
void to_lower_case(std::string& text);

// The lower case of a character, but for U+0130, which becomes two characters and stays itself here.
char32_t lower_case(char32_t c);

bool is_combining_mark(char32_t c);  // marks of Unicode 9, which StripAccents removes
bool is_bert_accent(char32_t c);     // marks of Unicode 8 that take no space, which BertNormalizer removes
bool is_cjk_ideograph(char32_t c);   // what BertNormalizer puts spaces around

}  // namespace tera
