#pragma once
// FP8 (8-bit floats) as a storage format: values are converted to f32 when they are read.

#include <bit>
#include <cstdint>

#include "tera/tensor/dtype.h"

namespace tera {

// e4m3: 4 bits of exponent, 3 of mantissa, no infinity, NaN where all seven are set; up to 448. e5m2: the upper half
// of a Float16.
enum class Float8Kind : std::uint8_t { e4m3, e5m2 };

constexpr float to_float(Float8Kind kind, std::uint8_t code) {
  if (kind == Float8Kind::e5m2) return to_float(Float16{static_cast<std::uint16_t>(code << 8)});
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x80u) << 24, magnitude = code & 0x7fu;
  if (magnitude == 0x7fu) return std::bit_cast<float>(sign | 0x7fc00000u);
  // Exponent and mantissa into place, then the exponent's bias (7 against 127) by a multiplication: right for
  // subnormals too.
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude << 20) * 0x1p120f));
}

}  // namespace tera
