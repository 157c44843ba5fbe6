#pragma once
// Counter-based random numbers (Philox 4x32-10): a pure function of key and counter, with no state to carry. Draws are
// keyed by global coordinates (parameter name and element, sample, position, column), so initial weights and dropout do
// not depend on how the model is split over ranks or threads.

#include <array>
#include <cstdint>
#include <string_view>

namespace tera {

struct RngKey {
  std::uint64_t seed = 0;
};

// A key for one use of randomness, e.g. stream(seed, "model.layers.3.self_attn.q_proj.weight").
RngKey rng_stream(std::uint64_t seed, std::string_view name);

// Four independent 32-bit words for one counter value.
std::array<std::uint32_t, 4> philox(RngKey key, std::uint64_t counter_low, std::uint64_t counter_high);

// Uniform in [0, 1), 24 bits.
constexpr float uniform_from_bits(std::uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1p-24f; }

// Draws 4*block .. 4*block+3 of the standard normal stream under `key`.
std::array<float, 4> normals_at(RngKey key, std::uint64_t block);

}  // namespace tera
