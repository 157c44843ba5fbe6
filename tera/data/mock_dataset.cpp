#include <algorithm>
#include <bit>

#include "tera/base/error.h"
#include "tera/data/dataset.h"

namespace tera {

MockDataset::MockDataset(std::int64_t vocab_size, std::uint64_t seed, std::uint64_t part)
    : vocab_size_(static_cast<std::uint32_t>(vocab_size)),
      octaves_(static_cast<std::uint32_t>(std::bit_width(vocab_size_))),
      part_(part),
      draws_(rng_stream(seed, "mock data")),
      followers_(rng_stream(seed, "mock data followers")) {
  require_user(vocab_size > 0 && vocab_size <= std::numeric_limits<std::int32_t>::max(),
               "mock data needs a vocabulary between 1 and 2147483647; model.vocab_size is {}", vocab_size);
}

// Octaves are equally likely, as are the ids inside one, so the probability of an id falls about as 1 / id. Integers
// only, so that no machine's mathematics library takes part.
std::int32_t MockDataset::skewed_id(std::uint32_t octave_bits, std::uint32_t place_bits) const {
  const auto octave = static_cast<std::uint32_t>(std::uint64_t{octave_bits} * octaves_ >> 32);
  const std::uint32_t first = (std::uint32_t{1} << octave) - 1;
  const std::uint32_t width = std::min(first + 1, vocab_size_ - first);
  return static_cast<std::int32_t>(first + static_cast<std::uint32_t>(std::uint64_t{place_bits} * width >> 32));
}

void MockDataset::sample(std::int64_t index, std::span<std::int32_t> tokens) const {
  require(index >= 0, "sample {} does not exist", index);
  std::int32_t previous = 0;
  for (std::size_t position = 0; position < tokens.size(); ++position) {
    const auto draw = philox(draws_, static_cast<std::uint64_t>(index), part_ << 32 | position);
    const bool fresh = position == 0 || draw[0] % 2 == 0;
    const auto bits = fresh ? draw : philox(followers_, static_cast<std::uint64_t>(previous), 0);
    tokens[position] = previous = skewed_id(bits[1], bits[2]);
  }
}

}  // namespace tera
