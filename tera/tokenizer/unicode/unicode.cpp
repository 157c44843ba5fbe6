#include "tera/tokenizer/unicode/unicode.h"

namespace tera {

bool is_word_character(char32_t c) {
  const Category kind = category(c);
  if (unicode::between(kind, Category::ll, Category::mn)) return true;  // letters and marks
  if (kind == Category::nd || kind == Category::nl || kind == Category::pc) return true;
  if (c < 0x200c) return false;
  const auto within = [&](char32_t first, char32_t last) { return c >= first && c <= last; };
  return within(0x200c, 0x200d) || within(0x24b6, 0x24e9) || within(0x1f130, 0x1f149) || within(0x1f150, 0x1f169) ||
         within(0x1f170, 0x1f189);
}

Utf8Character back_character(std::string_view text) {
  std::size_t bytes = 1;
  while (bytes < 4 && bytes < text.size() && (static_cast<unsigned char>(text[text.size() - bytes]) & 0xc0) == 0x80)
    ++bytes;
  const Utf8Character found = front_character(text.substr(text.size() - bytes));
  return found.bytes == bytes ? found : Utf8Character{unicode::replacement, 1};
}

std::size_t write_utf8(char32_t code, char* to) {
  const auto put = [&](std::size_t i, char32_t bits) { to[i] = static_cast<char>(bits); };
  const auto rest = [&](std::size_t i, int shift) { put(i, 0x80 | (code >> shift & 63)); };
  if (code < 0x80) return put(0, code), 1;
  if (code < 0x800) return put(0, 0xc0 | code >> 6), rest(1, 0), 2;
  if (code < 0x10000) return put(0, 0xe0 | code >> 12), rest(1, 6), rest(2, 0), 3;
  return put(0, 0xf0 | code >> 18), rest(1, 12), rest(2, 6), rest(3, 0), 4;
}

void append_utf8(std::string& text, char32_t code) {
  char bytes[4];
  text.append(bytes, write_utf8(code, bytes));
}

}  // namespace tera
