#pragma once
// The part of numpy.random.RandomState that determines the order of Megatron-LM's samples.

#include <bit>
#include <cstdint>
#include <random>
#include <span>
#include <utility>

namespace tera {

class NumpyRandom {
 public:
  explicit NumpyRandom(std::uint32_t seed) : generator_(seed) {}

  // Uniform in [0, max]: draws are masked to the bits of `max` and repeated until one is not above it.
  std::uint64_t bounded(std::uint64_t max) {
    const std::uint64_t mask = max == 0 ? 0 : ~std::uint64_t{0} >> std::countl_zero(max);
    if (mask == 0) return 0;  // without a draw
    std::uint64_t draw = 0;
    do draw = (mask > 0xffffffffU ? two_words() : word()) & mask;
    while (draw > max);
    return draw;
  }

  // RandomState.shuffle of an array of one dim.
  template <class T>
  void shuffle(std::span<T> values) {
    for (std::size_t i = values.size(); i-- > 1;) std::swap(values[i], values[bounded(i)]);
  }

 private:
  std::uint64_t word() { return generator_(); }
  std::uint64_t two_words() {
    const std::uint64_t high = word();
    return high << 32 | word();
  }

  std::mt19937 generator_;  // the standard fixes both its seeding and its output, and they are numpy's
};

}  // namespace tera
