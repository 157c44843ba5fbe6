#pragma once
// Philox 4x32-10, the same numbers as tera/base/rng.h (see isa.h for why it is written twice), for many counters at
// once.

#include <cstdint>

namespace tera::cpu {
namespace {

constexpr int philox_width = 16;

// The four words of philox(key, row, first + i) for i < philox_width: word[w][i].
struct PhiloxWords {
  alignas(64) std::uint32_t word[4][philox_width];
};

[[maybe_unused]] inline void philox_blocks(std::uint64_t key, std::uint64_t row, std::uint64_t first,
                                           PhiloxWords& out) {
  auto& c = out.word;
  for (int i = 0; i < philox_width; ++i) {
    const std::uint64_t block = first + static_cast<std::uint64_t>(i);
    c[0][i] = static_cast<std::uint32_t>(row);
    c[1][i] = static_cast<std::uint32_t>(row >> 32);
    c[2][i] = static_cast<std::uint32_t>(block);
    c[3][i] = static_cast<std::uint32_t>(block >> 32);
  }
  auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < philox_width; ++i) {
      const std::uint64_t p0 = std::uint64_t{0xD2511F53} * c[0][i];
      const std::uint64_t p1 = std::uint64_t{0xCD9E8D57} * c[2][i];
      c[0][i] = static_cast<std::uint32_t>(p1 >> 32) ^ c[1][i] ^ k0;
      c[1][i] = static_cast<std::uint32_t>(p1);
      c[2][i] = static_cast<std::uint32_t>(p0 >> 32) ^ c[3][i] ^ k1;
      c[3][i] = static_cast<std::uint32_t>(p0);
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

}  // namespace
}  // namespace tera::cpu
