#pragma once
// Vectorised functions on top of vexp. Errors are against the exact function, checked in
// tests/ops/activation_cases.cpp.

#include "tera/backend/cpu/kernels/vec.h"

namespace tera::cpu {
namespace {

[[maybe_unused]] inline Vec vabs(Vec x) { return as_float(as_bits(x) & 0x7fffffffu); }

[[maybe_unused]] inline Vec vsqrt(Vec x) {
  for (int i = 0; i < lanes; ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
}

// 1 / (1 + e^-x); tanh(x) = 2 sigmoid(2x) - 1.
[[maybe_unused]] inline Vec sigmoid(Vec x) { return 1.0f / (1.0f + vexp(-x)); }

// The normal distribution: density e^(-x^2/2) / sqrt(2 pi), and its integral up to x, (1 + erf(x / sqrt 2)) / 2. The
// integral is Abramowitz and Stegun 26.2.17 (7.5e-8 absolute) and shares its exponential with the density.
struct Normal {
  Vec density, integral;
};
[[maybe_unused]] inline Normal normal_distribution(Vec x) {
  const Vec density = 0.3989422804f * vexp(-0.5f * x * x);
  const Vec t = 1.0f / (1.0f + 0.2316419f * vabs(x));
  Vec p = splat(1.330274429f);
  p = p * t - 1.821255978f;
  p = p * t + 1.781477937f;
  p = p * t - 0.356563782f;
  p = p * t + 0.319381530f;
  const Vec upper_tail = density * p * t;
  return {density, x < 0.0f ? upper_tail : 1.0f - upper_tail};
}

}  // namespace
}  // namespace tera::cpu
