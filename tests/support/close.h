#pragma once
// One rule for how far a result may lie from the fp64 reference.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "tera/tensor/dtype.h"

namespace tera::test {

// Half the distance between neighbours near 1: what rounding to this type costs, relatively.
inline double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::bf16: return 0x1p-8;
    case DType::f16: return 0x1p-11;
    case DType::f64: return 0x1p-53;
    default: return 0x1p-24;
  }
}

// The bound for a value that is a sum of reduction_length terms, each rounded to fp32, and is then rounded to
// `storage`. `magnitude` is the sum of the terms' absolute values (or an upper bound of it), `value` the result itself
// where it is known: with cancellation it is much smaller. Rounding errors of a sum behave like a random walk, so they
// grow with the square root of its length; 4 is the margin over that. Values below the smallest normal fp16 lose up to
// half of its subnormal step.
inline double tolerance(DType storage, std::int64_t reduction_length, double magnitude, double value) {
  const double steps = 4.0 * std::sqrt(static_cast<double>(reduction_length) + 4.0);
  const double sums = steps * unit_roundoff(DType::f32) * magnitude;
  const double rounding = storage == DType::f32 ? 0.0 : 1.01 * unit_roundoff(storage) * (std::abs(value) + sums);
  return sums + rounding + (storage == DType::f16 ? 0x1p-25 : 1e-37);
}
inline double tolerance(DType storage, std::int64_t reduction_length, double magnitude) {
  return tolerance(storage, reduction_length, magnitude, magnitude);
}

// Largest difference over largest wanted value; not finite where either has a NaN, so that no comparison passes.
inline double relative_difference(const std::vector<float>& got, const std::vector<float>& want) {
  double difference = got.size() == want.size() ? 0 : INFINITY, largest = 0;
  for (std::size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    const double d = std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i]));
    if (!(d <= difference)) difference = d;  // a NaN stays: no later value is greater
    largest = std::max(largest, std::abs(static_cast<double>(want[i])));
    if (std::isnan(d)) return d;
  }
  return difference / largest;
}

}  // namespace tera::test
