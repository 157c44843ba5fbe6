#pragma once
// The byte alphabet of GPT-2: each byte is written as one printable character.

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace tera {

// The code point that stands for each byte.
const std::array<char32_t, 256>& byte_alphabet();

// Bytes to characters.
std::string to_byte_level(std::string_view bytes);
std::size_t byte_level_size(std::string_view bytes);  // bytes of the characters

// Characters to bytes; nothing if one of them is not in the alphabet.
std::optional<std::string> from_byte_level(std::string_view text);

}  // namespace tera
