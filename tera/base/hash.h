#pragma once

#include <cstdint>
#include <string_view>

namespace tera {

// FNV-1a, not cryptographic. Its low bits are weak.
constexpr std::uint64_t hash_text(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}

}  // namespace tera
