#pragma once
// Classes of characters, and runs of them, for the scanners of split patterns.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tera/tokenizer/unicode/unicode.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace tera::split {

using Flags = std::uint8_t;
constexpr Flags letter = 1, number = 2, white = 4, mark = 8, sign = 16;  // sign: punctuation or symbol
// The classes of the two halves of a word by case: Lu Lt Lm Lo M and Ll Lm Lo M.
constexpr Flags capital = 32, small = 64;
constexpr Flags wide = 128;  // the first byte of a character that is not ASCII (in ascii_flags only)

constexpr Flags flags_of_category(Category category) {
  const auto between = [category](Category first, Category last) { return category >= first && category <= last; };
  if (category == Category::ll) return letter | small;
  if (category == Category::lu || category == Category::lt) return letter | capital;
  if (between(Category::ll, Category::lu)) return letter | capital | small;
  if (between(Category::mc, Category::mn)) return mark | capital | small;
  if (between(Category::nd, Category::no)) return number;
  if (between(Category::pc, Category::so)) return sign;
  if (between(Category::zl, Category::zs)) return white;
  return 0;
}

constexpr std::array<Flags, 32> make_category_flags() {
  std::array<Flags, 32> flags{};
  for (std::size_t i = 0; i <= static_cast<std::size_t>(Category::zs); ++i)
    flags[i] = flags_of_category(static_cast<Category>(i));
  return flags;
}
inline constexpr std::array<Flags, 32> category_flags = make_category_flags();

constexpr std::array<Flags, 256> make_ascii_flags() {
  std::array<Flags, 256> flags{};
  for (unsigned c = 0; c < 256; ++c) {
    if (c >= 128)
      flags[c] = wide;
    else if (c >= 'a' && c <= 'z')
      flags[c] = letter | small;
    else if (c >= 'A' && c <= 'Z')
      flags[c] = letter | capital;
    else if (c >= '0' && c <= '9')
      flags[c] = number;
    else if (c == ' ' || (c >= 9 && c <= 13))
      flags[c] = white;
    else if (c > ' ' && c < 127)
      flags[c] = sign;
  }
  return flags;
}
inline constexpr std::array<Flags, 256> ascii_flags = make_ascii_flags();

struct Glyph {
  Flags flags;  // never `wide`
  std::uint8_t bytes;
};

inline Glyph wide_glyph(const char* at, const char* end) {
  const Utf8Character c = front_character(at, static_cast<std::size_t>(end - at));
  const Flags flags = c.code == 0x85 ? white : category_flags[static_cast<std::size_t>(category(c.code))];
  return {flags, static_cast<std::uint8_t>(c.bytes)};
}

// The character at a position before the end.
inline Glyph glyph(const char* at, const char* end) {
  const Flags flags = ascii_flags[static_cast<unsigned char>(*at)];
  if (!(flags & wide)) [[likely]]
    return {flags, 1};
  return wide_glyph(at, end);
}

inline bool is_newline(char c) { return c == '\r' || c == '\n'; }

// How many of the sixteen bytes from `at` on are ASCII letters (small ones only, without `any_case`) before the first
// that is not.
template <bool any_case>
inline std::size_t ascii_letters_of_16(const char* at) {
#if defined(__SSE2__)
  __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  if (any_case) bytes = _mm_or_si128(bytes, _mm_set1_epi8(0x20));
  // Letters are moved to the bottom of the signed range.
  const __m128i moved = _mm_add_epi8(bytes, _mm_set1_epi8(static_cast<char>(-'a' - 128)));
  const __m128i outside = _mm_cmpgt_epi8(moved, _mm_set1_epi8(static_cast<char>(-128 + 25)));
  return static_cast<std::size_t>(std::countr_zero(static_cast<unsigned>(_mm_movemask_epi8(outside)) | 0x10000U));
#elif defined(__ARM_NEON)
  uint8x16_t bytes = vld1q_u8(reinterpret_cast<const std::uint8_t*>(at));
  if (any_case) bytes = vorrq_u8(bytes, vdupq_n_u8(0x20));
  const uint8x16_t outside = vcgtq_u8(vsubq_u8(bytes, vdupq_n_u8('a')), vdupq_n_u8(25));
  const std::uint64_t nibbles = vget_lane_u64(vreinterpret_u64_u8(vshrn_n_u16(vreinterpretq_u16_u8(outside), 4)), 0);
  return static_cast<std::size_t>(std::countr_zero(nibbles)) / 4;
#else
  std::size_t count = 0;
  while (count < 16 && (ascii_flags[static_cast<unsigned char>(at[count])] & (any_case ? letter : small))) ++count;
  return count;
#endif
}

// The end of the run of characters from `at` on of which `wanted` is true.
template <class Wanted>
inline const char* run_end(const char* at, const char* end, Wanted wanted) {
  while (at < end) {
    const Glyph next = glyph(at, end);
    if (!wanted(next.flags)) break;
    at += next.bytes;
  }
  return at;
}

// The end of the run of characters that have one of the flags, which are those of letters: of all of them, or of small
// ones. `wanted` says whether a character that is not ASCII belongs to the run.
template <Flags flags, class Wanted>
inline const char* letters_end(const char* at, const char* end, Wanted wanted) {
  while (at < end) {
    if (end - at >= 16) {
      const std::size_t count = ascii_letters_of_16<(flags & letter) != 0>(at);
      at += count;
      if (count == 16) continue;
    } else {
      while (at < end && (ascii_flags[static_cast<unsigned char>(*at)] & flags)) ++at;
      if (at == end) return at;
    }
    if (static_cast<unsigned char>(*at) < 0x80) return at;
    const Glyph next = wide_glyph(at, end);
    if (!(next.flags & flags) || !wanted(at)) return at;
    at += next.bytes;
  }
  return at;
}

template <Flags flags>
inline const char* letters_end(const char* at, const char* end) {
  return letters_end<flags>(at, end, [](const char*) { return true; });
}

inline const char* numbers_end(const char* at, const char* end) {
  return run_end(at, end, [](Flags flags) { return (flags & number) != 0; });
}

// [^\s\p{L}\p{N}]*
inline const char* others_end(const char* at, const char* end) {
  return run_end(at, end, [](Flags flags) { return (flags & (white | letter | number)) == 0; });
}

inline const char* newlines_end(const char* at, const char* end) {
  while (at < end && is_newline(*at)) ++at;
  return at;
}

}  // namespace tera::split
