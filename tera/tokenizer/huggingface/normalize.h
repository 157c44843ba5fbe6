#pragma once
// Rewriting text by Unicode's rules, in the versions that `tokenizers` follows: normal forms of Unicode 9, lower case
// of Unicode 17. Text that stays as it is costs one look at its bytes.

#include <cstdint>
#include <string>
#include <string_view>

namespace tera {

enum class NormalForm : std::uint8_t { nfc, nfkc, nfd, nfkd };

void to_normal_form(NormalForm form, std::string& text);
// The image of the `start` bytes at the front of the text that stand for its first character (normalizer.h).
std::size_t start_in_normal_form(NormalForm form, std::string_view text, std::size_t start);

// A character of a rewritten text: in place of the next one before (0), beside the one before it (1), or in place of
// the next one and of -change others after that.
struct Rewritten {
  char32_t code;
  std::int64_t change;
};
// How many bytes of the rewritten front stand for the first character, if `start` bytes of the text do.
class FirstPlace {
 public:
  FirstPlace(std::string_view text, std::size_t start) : text_(text), start_(start) {}
  // Adds a character, in order. False from the first one on that stands for another character: no more are needed.
  bool take(Rewritten character);
  std::size_t size() const { return size_; }

 private:
  std::string_view text_;
  std::size_t start_;
  std::size_t at_ = 0, size_ = 0;  // bytes of the text, and of the rewritten text
  bool inside_ = true;
};

// Lower case, character by character: a final sigma is not special.
void to_lower_case(std::string& text);

// The lower case of a character, but for U+0130, which becomes two characters and stays itself here.
char32_t lower_case(char32_t c);

bool is_combining_mark(char32_t c);  // marks of Unicode 9, which StripAccents removes
bool is_bert_accent(char32_t c);     // non-spacing marks of Unicode 8, which BertNormalizer removes
bool is_cjk_ideograph(char32_t c);   // BertNormalizer puts spaces around them

}  // namespace tera
