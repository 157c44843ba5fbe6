#pragma once
// The online softmax of a row of logits: its running maximum and sum.

#include "tera/backend/cuda/kernels/rows.cuh"

#ifdef __CUDACC__
namespace tera::cuda::kernels {

__device__ inline float minus_infinity() { return __int_as_float(0xff800000); }

// sum of e^(x - maximum) over the values seen so far.
struct Softmax {
  float maximum, sum;
};

// What to subtract in exponents: with nothing but -inf seen, -inf - -inf would be NaN.
__device__ inline float shift_of(float maximum) { return maximum == minus_infinity() ? 0.0f : maximum; }

// e^(x - shift). The difference comes first: it is exact for the values that matter, next to the largest.
__device__ inline float exponential(float x, float shift) { return exp2_approx((x - shift) * log2_e); }

// The loss of a row whose target has the logit `chosen`.
__device__ inline float loss_of(Softmax softmax, float chosen) {
  const double off = static_cast<double>(softmax.maximum) - static_cast<double>(chosen);
  return static_cast<float>(log(static_cast<double>(softmax.sum)) + off);
}

}  // namespace tera::cuda::kernels
#endif
