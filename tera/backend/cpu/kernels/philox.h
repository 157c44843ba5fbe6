#pragma once
// Philox 4x32-10, the same numbers as tera/base/rng.h (see isa.h for why it is written twice), for many counters at
// once.

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "tera/backend/cpu/kernels/vec.h"

namespace tera::cpu {
namespace {

constexpr int philox_width = 16;

// The four words of philox(key, row, first + i) for i < philox_width: word[w][i].
struct PhiloxWords {
  alignas(64) std::uint32_t word[4][philox_width];
};

using LongVec = std::uint64_t __attribute__((vector_size(lanes * 4)));

// Multiplies the low halves. Compilers do not see that the high halves of a are irrelevant, and multiply in full.
[[maybe_unused]] inline LongVec multiply_low_halves(LongVec a, LongVec b) {
#if defined(__AVX512F__)
  return (LongVec)_mm512_maskz_mul_epu32(0xff, (__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (LongVec)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif defined(__x86_64__)
  return (LongVec)_mm_mul_epu32((__m128i)a, (__m128i)b);
#else
  return (a & 0xffffffffu) * (b & 0xffffffffu);
#endif
}

// The high and the low halves of a[i] * factor.
struct WideProduct {
  UIntVec high, low;
};
[[maybe_unused]] inline WideProduct multiply_wide(UIntVec a, std::uint32_t factor) {
  constexpr std::uint64_t low_half = 0xffffffffu;
  const LongVec spread = LongVec{} + factor;
  const LongVec even = multiply_low_halves((LongVec)a, spread), odd = multiply_low_halves((LongVec)a >> 32, spread);
  return {(UIntVec)((even >> 32) | (odd & ~low_half)), (UIntVec)((even & low_half) | (odd << 32))};
}

[[maybe_unused]] inline void philox_blocks(std::uint64_t key, std::uint64_t row, std::uint64_t first,
                                           PhiloxWords& out) {
  for (int part = 0; part < philox_width; part += lanes) {
    UIntVec c0 = UIntVec{} + static_cast<std::uint32_t>(row), c1 = UIntVec{} + static_cast<std::uint32_t>(row >> 32);
    UIntVec c2{}, c3{};
    for (int i = 0; i < lanes; ++i) {
      const std::uint64_t block = first + static_cast<std::uint64_t>(part + i);
      c2[i] = static_cast<std::uint32_t>(block);
      c3[i] = static_cast<std::uint32_t>(block >> 32);
    }
    auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
      const WideProduct p0 = multiply_wide(c0, 0xD2511F53u), p1 = multiply_wide(c2, 0xCD9E8D57u);
      c0 = p1.high ^ c1 ^ k0;
      c1 = p1.low;
      c2 = p0.high ^ c3 ^ k1;
      c3 = p0.low;
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    std::memcpy(&out.word[0][part], &c0, sizeof c0);
    std::memcpy(&out.word[1][part], &c1, sizeof c1);
    std::memcpy(&out.word[2][part], &c2, sizeof c2);
    std::memcpy(&out.word[3][part], &c3, sizeof c3);
  }
}

}  // namespace
}  // namespace tera::cpu
