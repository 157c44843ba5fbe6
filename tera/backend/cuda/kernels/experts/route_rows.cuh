#pragma once
// A row of a router in the registers of a warp: expert e is number e / 32 of lane e % 32; lane k has the k-th chosen
// expert.

#include <type_traits>

#include "tera/backend/cuda/kernels/experts/route.cuh"
#include "tera/backend/cuda/kernels/softmax.cuh"

#ifdef __CUDACC__
namespace tera::cuda::kernels {

inline constexpr int warp_size = 32, route_warps = 8;
inline constexpr unsigned all_lanes = 0xffffffffu;
inline constexpr float route_tiny = 1e-20f;  // keeps a sum of sigmoids from being zero

// launch(S): the experts of a lane, as a compile-time constant.
template <class Launch>
cudaError_t with_slots(int experts, const Launch& launch) {
  if (experts <= 1 * warp_size) return launch(std::integral_constant<int, 1>{});
  if (experts <= 2 * warp_size) return launch(std::integral_constant<int, 2>{});
  if (experts <= 4 * warp_size) return launch(std::integral_constant<int, 4>{});
  if (experts <= 8 * warp_size) return launch(std::integral_constant<int, 8>{});
  static_assert(max_route_experts <= 16 * warp_size);
  return launch(std::integral_constant<int, 16>{});
}

__device__ inline int lane_of_thread() { return static_cast<int>(threadIdx.x) % warp_size; }
__device__ inline int warp_of_thread() { return static_cast<int>(threadIdx.x) / warp_size; }

// Experts that are not there get `other`.
template <int S>
__device__ void load_experts(const float* from, int experts, float other, float (&out)[S]) {
#pragma unroll
  for (int s = 0; s < S; ++s) {
    const int e = lane_of_thread() + s * warp_size;
    out[s] = e < experts ? from[e] : other;
  }
}

template <int S>
__device__ float warp_dot(const float (&a)[S], const float (&b)[S]) {
  float sum = 0;
#pragma unroll
  for (int s = 0; s < S; ++s) sum += a[s] * b[s];
  return warp_sum(sum);
}

// The softmax of a row in which missing experts have -inf. fmaxf leaves NaN out; it comes back through the
// exponentials.
template <int S>
__device__ Softmax row_softmax(const float (&x)[S], float (&p)[S]) {
  float maximum = minus_infinity(), sum = 0;
#pragma unroll
  for (int s = 0; s < S; ++s) maximum = fmaxf(maximum, x[s]);
  maximum = warp_max(maximum);
#pragma unroll
  for (int s = 0; s < S; ++s) sum += p[s] = expf(x[s] - shift_of(maximum));
  sum = warp_sum(sum);
#pragma unroll
  for (int s = 0; s < S; ++s) p[s] /= sum;
  return {maximum, sum};
}
__device__ inline float log_sum(const Softmax& softmax) { return logf(softmax.sum) + softmax.maximum; }

// score = sigmoid(x) and rest = 1 - score, both to full relative precision.
struct Sigmoid {
  float score, rest;
};
__device__ inline Sigmoid sigmoid_of(float x) {
  const float e = expf(-fabsf(x)), near = 1 / (1 + e), far = e * near;
  return x < 0 ? Sigmoid{far, near} : Sigmoid{near, far};
}

// Lane k's weight before `scale`; 0 beyond the last. divisor: the sum that sigmoids were divided by.
struct ChosenWeight {
  float value, divisor;
};
__device__ inline ChosenWeight weigh(const RouteRule& rule, float logit, const Softmax& all) {
  const bool used = lane_of_thread() < rule.topk;
  if (rule.sigmoid) {
    const float score = used ? sigmoid_of(logit).score : 0.0f;
    const float divisor = rule.renormalize ? warp_sum(score) + route_tiny : 1.0f;
    return {score / divisor, divisor};
  }
  if (!rule.renormalize) return {used ? expf(logit - shift_of(all.maximum)) / all.sum : 0.0f, 1.0f};
  // The softmax of the chosen logits, which cannot lose all of them. A broken row stays so, even if what broke it was
  // not chosen.
  const float shift = shift_of(warp_max(used ? logit : minus_infinity()));
  const float e = used ? expf(logit - shift) : 0.0f, sum = warp_sum(e);
  return {used ? e / sum + all.sum * 0 : 0.0f, 1.0f};
}

}  // namespace tera::cuda::kernels
#endif
