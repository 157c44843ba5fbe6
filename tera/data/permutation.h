#pragma once
// A shuffled order of 0 .. n-1 that is computed, not stored: a Feistel network over the counter RNG.

#include <cstdint>

#include "tera/base/rng.h"

namespace tera {

class Permutation {
 public:
  Permutation(RngKey key, std::int64_t n);
  std::int64_t size() const { return n_; }
  // The image of `index` in epoch number `pass`; for a fixed pass a bijection of [0, n).
  std::int64_t at(std::int64_t index, std::int64_t pass) const;

 private:
  RngKey key_;
  std::int64_t n_;
  int half_bits_;  // the network permutes [0, 4^half_bits), at most 4 n; cycle walking brings it into [0, n)
};

}  // namespace tera
