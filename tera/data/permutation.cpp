#include "tera/data/permutation.h"

#include <bit>

#include "tera/base/error.h"

namespace tera {

Permutation::Permutation(RngKey key, std::int64_t n) : key_(key), n_(n) {
  require(n > 0 && n <= std::int64_t{1} << 60, "a permutation of {} things cannot be made", n);
  half_bits_ = (static_cast<int>(std::bit_width(static_cast<std::uint64_t>(n - 1))) + 1) / 2;
}

std::int64_t Permutation::at(std::int64_t index, std::int64_t pass) const {
  require(index >= 0 && index < n_, "index {} is outside a permutation of {}", index, n_);
  constexpr std::uint64_t rounds = 10;  // six favour some orders of a handful of elements measurably
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  auto image = static_cast<std::uint64_t>(index);
  do {
    std::uint64_t left = image >> half_bits_, right = image & mask;
    for (std::uint64_t round = 0; round < rounds; ++round) {
      const auto bits = philox(key_, right, static_cast<std::uint64_t>(pass) * rounds + round);
      const std::uint64_t mixed = left ^ (bits[0] & mask);
      left = right;
      right = mixed;
    }
    image = left << half_bits_ | right;
  } while (image >= static_cast<std::uint64_t>(n_));
  return static_cast<std::int64_t>(image);
}

}  // namespace tera
