#include "tera/tokenizer/bpe/byte_level.h"

#include "tera/tokenizer/unicode/unicode.h"

namespace tera {

namespace {

// Printable bytes of Latin-1 stand for themselves, the others follow from U+0100 on in order.
std::array<char32_t, 256> make_alphabet() {
  std::array<char32_t, 256> alphabet{};
  char32_t next = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    alphabet[byte] = printable ? byte : next++;
  }
  return alphabet;
}

std::array<std::int16_t, 0x144> make_bytes() {
  std::array<std::int16_t, 0x144> bytes{};
  bytes.fill(-1);
  for (std::size_t byte = 0; byte < 256; ++byte) bytes[byte_alphabet()[byte]] = static_cast<std::int16_t>(byte);
  return bytes;
}

}  // namespace

const std::array<char32_t, 256>& byte_alphabet() {
  static const std::array<char32_t, 256> alphabet = make_alphabet();
  return alphabet;
}

std::string to_byte_level(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const char byte : bytes) append_utf8(text, byte_alphabet()[static_cast<unsigned char>(byte)]);
  return text;
}

std::size_t byte_level_size(std::string_view bytes) {
  std::size_t size = bytes.size();
  for (const char byte : bytes) size += byte_alphabet()[static_cast<unsigned char>(byte)] >= 0x80;
  return size;
}

std::optional<std::string> from_byte_level(std::string_view text) {
  static const std::array<std::int16_t, 0x144> bytes = make_bytes();
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const Utf8Character character = front_character(text);
    if (character.code >= bytes.size() || bytes[character.code] < 0) return std::nullopt;
    result += static_cast<char>(bytes[character.code]);
    text.remove_prefix(character.bytes);
  }
  return result;
}

}  // namespace tera
