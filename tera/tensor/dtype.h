#pragma once
// Element types. 16-bit floats are storage only: arithmetic happens in float.

#include <bit>
#include <cstddef>
#include <cstdint>

#include "tera/base/enum_names.h"

namespace tera {

enum class DType : std::uint8_t { f32, bf16, f16, f64, i32, i64, u8 };

template <>
struct EnumNames<DType> {
  static constexpr std::array values{
      std::pair{DType::f32, std::string_view("f32")}, std::pair{DType::bf16, std::string_view("bf16")},
      std::pair{DType::f16, std::string_view("f16")}, std::pair{DType::f64, std::string_view("f64")},
      std::pair{DType::i32, std::string_view("i32")}, std::pair{DType::i64, std::string_view("i64")},
      std::pair{DType::u8, std::string_view("u8")}};
};

constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64: return 8;
    case DType::f32:
    case DType::i32: return 4;
    case DType::bf16:
    case DType::f16: return 2;
    case DType::u8: return 1;
  }
  return 0;
}

constexpr bool is_float(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16; }

struct BFloat16 {
  std::uint16_t bits = 0;
};
struct Float16 {
  std::uint16_t bits = 0;
};

constexpr float to_float(float x) { return x; }
constexpr float to_float(BFloat16 x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16); }
constexpr float to_float(Float16 x) {
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = x.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  // Shifts exponent and mantissa into place, then corrects the exponent's bias (15 against 127) by a multiplication,
  // which is exact, also for subnormals.
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude << 13) * 0x1p112f));
}

// Round to nearest, ties to even; NaN stays NaN.
constexpr BFloat16 to_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}
constexpr Float16 to_f16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<std::uint16_t>(sign | 0x7e00u)};
  if (magnitude >= 0x477ff000u) return {static_cast<std::uint16_t>(sign | 0x7c00u)};  // 65520 and up round to infinity
  if (magnitude < 0x38800000u) {                                                      // below 2^-14: subnormal
    // Adding 0.5 lets the float adder round at bit 2^-24; the integer difference is the subnormal mantissa.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return {static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u))};
  }
  const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return {static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
}

// clang-format off
template <class T>
constexpr T from_float(float x);
template <>
constexpr float from_float<float>(float x) { return x; }
template <>
constexpr BFloat16 from_float<BFloat16>(float x) { return to_bf16(x); }
template <>
constexpr Float16 from_float<Float16>(float x) { return to_f16(x); }

template <class T>
constexpr DType dtype_of();
template <> constexpr DType dtype_of<float>() { return DType::f32; }
template <> constexpr DType dtype_of<BFloat16>() { return DType::bf16; }
template <> constexpr DType dtype_of<Float16>() { return DType::f16; }
template <> constexpr DType dtype_of<double>() { return DType::f64; }
template <> constexpr DType dtype_of<std::int32_t>() { return DType::i32; }
template <> constexpr DType dtype_of<std::int64_t>() { return DType::i64; }
template <> constexpr DType dtype_of<std::uint8_t>() { return DType::u8; }
// clang-format on

}  // namespace tera
