#pragma once
// Values for tests: reproducible, from the counter-based generator.

#include <cstdint>
#include <vector>

#include "tera/base/rng.h"
#include "tera/tensor/shape.h"

namespace tera::test {

using Values = std::vector<double>;

inline Values normal_values(const Shape& shape, std::uint64_t seed, double scale = 1, double mean = 0) {
  Values out(static_cast<std::size_t>(count(shape)));
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = mean + scale * static_cast<double>(normals_at({seed}, i / 4)[i % 4]);
  return out;
}

// Integers in [0, below).
inline Values integer_values(const Shape& shape, std::uint64_t seed, std::int64_t below) {
  Values out(static_cast<std::size_t>(count(shape)));
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<double>(philox({seed}, i, 0)[0] % static_cast<std::uint64_t>(below));
  return out;
}

}  // namespace tera::test
