#include "tera/base/utf8.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace tera {
namespace {

struct Lead {
  std::size_t bytes;                      // length of the whole character, 0 if no character starts so
  unsigned char second_low, second_high;  // the second byte's range, which rules out overlong forms and surrogates
};

constexpr Lead lead_of(unsigned char c) {
  if (c < 0x80) return {1, 0, 0};
  if (c < 0xc2) return {0, 0, 0};
  if (c < 0xe0) return {2, 0x80, 0xbf};
  if (c < 0xf0)
    return {3, static_cast<unsigned char>(c == 0xe0 ? 0xa0 : 0x80),
            static_cast<unsigned char>(c == 0xed ? 0x9f : 0xbf)};
  if (c < 0xf5)
    return {4, static_cast<unsigned char>(c == 0xf0 ? 0x90 : 0x80),
            static_cast<unsigned char>(c == 0xf4 ? 0x8f : 0xbf)};
  return {0, 0, 0};
}

}  // namespace

std::size_t ascii_prefix(std::string_view text) {
  std::size_t i = 0;
  for (std::uint64_t word; i + 8 <= text.size(); i += 8) {
    std::memcpy(&word, text.data() + i, 8);
    if (word & 0x8080808080808080ULL) break;
  }
  while (i < text.size() && static_cast<unsigned char>(text[i]) < 0x80) ++i;
  return i;
}

Utf8Step next_utf8(std::string_view text) {
  const Lead lead = lead_of(static_cast<unsigned char>(text[0]));
  if (lead.bytes == 0) return {1, false};
  for (std::size_t i = 1; i < lead.bytes; ++i) {
    const unsigned char low = i == 1 ? lead.second_low : 0x80, high = i == 1 ? lead.second_high : 0xbf;
    if (i == text.size()) return {i, false};
    const auto c = static_cast<unsigned char>(text[i]);
    if (c < low || c > high) return {i, false};
  }
  return {lead.bytes, true};
}

std::size_t valid_utf8_prefix(std::string_view text) {
  std::size_t i = 0;
  while (true) {
    i += ascii_prefix(text.substr(i));
    if (i == text.size()) return i;
    const Utf8Step step = next_utf8(text.substr(i));
    if (!step.valid) return i;
    i += step.bytes;
  }
}

std::string mend_utf8(std::string_view text) {
  std::string out;
  while (true) {
    const std::size_t good = valid_utf8_prefix(text);
    out += text.substr(0, good);
    text.remove_prefix(good);
    if (text.empty()) return out;
    out += "\xef\xbf\xbd";
    text.remove_prefix(next_utf8(text).bytes);
  }
}

}  // namespace tera
