#pragma once
// A SIMD vector of floats, as wide as the instruction set of this compilation, and its operations. Written with
// the compiler's vector types, so that one source serves SSE2, AVX2, AVX-512 and NEON. Everything is in an anonymous
// namespace on purpose: see isa.h.

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tera::cpu {
namespace {

#if defined(__AVX512F__)
constexpr int lanes = 16;
#elif defined(__AVX2__)
constexpr int lanes = 8;
#else
constexpr int lanes = 4;
#endif

using Vec = float __attribute__((vector_size(lanes * 4)));
using IntVec = std::int32_t __attribute__((vector_size(lanes * 4)));
using UIntVec = std::uint32_t __attribute__((vector_size(lanes * 4)));
using ShortVec = std::uint16_t __attribute__((vector_size(lanes * 2)));

// Storage types: bits only. The library's BFloat16 and Float16 have the same layout.
struct Bf16 {
  std::uint16_t bits;
};
struct Fp16 {
  std::uint16_t bits;
};

[[maybe_unused]] inline Vec splat(float x) { return x - Vec{}; }
[[maybe_unused]] inline Vec zero() { return Vec{}; }
[[maybe_unused]] inline Vec as_float(UIntVec v) { return (Vec)v; }
[[maybe_unused]] inline UIntVec as_bits(Vec v) { return (UIntVec)v; }
[[maybe_unused]] inline Vec vmax(Vec a, Vec b) { return a > b ? a : b; }
[[maybe_unused]] inline Vec vmin(Vec a, Vec b) { return a < b ? a : b; }

[[maybe_unused]] inline UIntVec widen(const std::uint16_t* p) {
  ShortVec bits;
  std::memcpy(&bits, p, sizeof bits);
  return __builtin_convertvector(bits, UIntVec);
}
[[maybe_unused]] inline void narrow(std::uint16_t* p, UIntVec v) {
  const ShortVec bits = __builtin_convertvector(v, ShortVec);
  std::memcpy(p, &bits, sizeof bits);
}

[[maybe_unused]] inline Vec load(const float* p) {
  Vec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
[[maybe_unused]] inline Vec load(const Bf16* p) { return as_float(widen(&p->bits) << 16); }
[[maybe_unused]] inline Vec load(const Fp16* p) {
  const UIntVec bits = widen(&p->bits);
  const UIntVec sign = (bits & 0x8000u) << 16, magnitude = (bits & 0x7fffu) << 13;
  // The multiplication corrects the exponent's bias and is exact for subnormals; infinity and NaN need their exponent
  // set.
  const Vec scaled = as_float(magnitude) * 0x1p112f;
  const UIntVec special = (bits & 0x7fffu) >= 0x7c00u ? (magnitude | 0x7f800000u) : as_bits(scaled);
  return as_float(special | sign);
}

[[maybe_unused]] inline void store(float* p, Vec v) { std::memcpy(p, &v, sizeof v); }
[[maybe_unused]] inline void store(Bf16* p, Vec v) {
  const UIntVec bits = as_bits(v);
  const UIntVec rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const UIntVec quiet = (bits >> 16) | 0x40u;
  narrow(&p->bits, (bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}
[[maybe_unused]] inline void store(Fp16* p, Vec v) {
  const UIntVec bits = as_bits(v);
  const UIntVec sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  const UIntVec normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
  const UIntVec subnormal = as_bits(as_float(magnitude) + 0.5f) - 0x3f000000u;  // the adder rounds at bit 2^-24
  UIntVec out = magnitude < 0x38800000u ? subnormal : normal;
  out = magnitude >= 0x477ff000u ? (magnitude > 0x7f800000u ? (magnitude & 0u) + 0x7e00u : (magnitude & 0u) + 0x7c00u)
                                 : out;
  narrow(&p->bits, out | sign);
}

// The last, incomplete vector of a row: n < lanes elements; the others are zero.
template <class T>
[[maybe_unused]] inline Vec load_tail(const T* p, std::ptrdiff_t n) {
  T part[lanes] = {};
  std::memcpy(part, p, static_cast<std::size_t>(n) * sizeof(T));
  return load(part);
}
template <class T>
[[maybe_unused]] inline void store_tail(T* p, Vec v, std::ptrdiff_t n) {
  T part[lanes];
  store(part, v);
  std::memcpy(p, part, static_cast<std::size_t>(n) * sizeof(T));
}

// Sums and maxima over the lanes, in a fixed order.
[[maybe_unused]] inline float sum_lanes(Vec v) {
  float part[lanes];
  store(part, v);
  for (int width = lanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) part[i] += part[i + width];
  return part[0];
}
[[maybe_unused]] inline float max_lanes(Vec v) {
  float part[lanes];
  store(part, v);
  float maximum = part[0];
  for (int i = 1; i < lanes; ++i) maximum = part[i] > maximum ? part[i] : maximum;
  return maximum;
}

// e^x within 2 ulp; 0 below -87.3 (so for -inf), infinity above 88.72, NaN for NaN. Outside that range the result of
// the middle part is invalid, and the last two lines ignore it.
[[maybe_unused]] inline Vec vexp(Vec x) {
  // n = round(x / ln 2) by the adder: 1.5 * 2^23 pushes the fraction out of the mantissa.
  const Vec shifted = x * 1.44269504f + 12582912.0f;
  const Vec n = shifted - 12582912.0f;
  const Vec r = x - n * 0.693359375f + n * 2.12194440e-4f;  // ln 2 in two parts
  Vec p = splat(1.0f / 5040);
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r * r + r + 1.0f;
  // n stands in the low bits of shifted: add it to the exponent of p. No result in range leaves the normal numbers.
  const Vec scaled = as_float(as_bits(p) + (as_bits(shifted) << 23));
  const Vec low = x < -87.3f ? zero() : scaled;
  return x <= 88.72f ? low : x * 1e38f;  // infinity, or the NaN that x is
}

}  // namespace
}  // namespace tera::cpu
