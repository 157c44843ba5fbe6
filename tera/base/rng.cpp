#include "tera/base/rng.h"

#include <cmath>
#include <numbers>

#include "tera/base/hash.h"

namespace tera {
namespace {

// SplitMix64's finaliser: spreads FNV's weak low bits over the key.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// Uniform in (0, 1): never zero, so that its logarithm is finite.
double open_uniform(std::uint32_t bits) { return (static_cast<double>(bits) + 0.5) * 0x1p-32; }

}  // namespace

RngKey rng_stream(std::uint64_t seed, std::string_view name) {
  return {mix(seed + 0x9e3779b97f4a7c15ULL) ^ mix(hash_text(name))};
}

std::array<std::uint32_t, 4> philox(RngKey key, std::uint64_t counter_low, std::uint64_t counter_high) {
  auto k0 = static_cast<std::uint32_t>(key.seed);
  auto k1 = static_cast<std::uint32_t>(key.seed >> 32);
  std::array<std::uint32_t, 4> c{static_cast<std::uint32_t>(counter_low), static_cast<std::uint32_t>(counter_low >> 32),
                                 static_cast<std::uint32_t>(counter_high),
                                 static_cast<std::uint32_t>(counter_high >> 32)};
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53} * c[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<std::uint32_t>(p0)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return c;
}

std::array<float, 4> normals_at(RngKey key, std::uint64_t block) {
  const auto bits = philox(key, block, 0);
  std::array<float, 4> out{};
  for (std::size_t i = 0; i < 4; i += 2) {  // Box-Muller
    const double radius = std::sqrt(-2.0 * std::log(open_uniform(bits[i])));
    const double angle = 2.0 * std::numbers::pi * open_uniform(bits[i + 1]);
    out[i] = static_cast<float>(radius * std::cos(angle));
    out[i + 1] = static_cast<float>(radius * std::sin(angle));
  }
  return out;
}

}  // namespace tera
