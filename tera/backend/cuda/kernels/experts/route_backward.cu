#include "tera/backend/cuda/kernels/experts/route_rows.cuh"

namespace tera::cuda::kernels {
namespace {

// to[expert of lane k] += value of lane k, for each k.
template <int S>
__device__ void add_to_chosen(const RouteRule& rule, int expert, float value, float (&to)[S]) {
  for (int k = 0; k < rule.topk; ++k) {
    const int e = __shfl_sync(all_lanes, expert, k);
    const float v = __shfl_sync(all_lanes, value, k);
#pragma unroll
    for (int s = 0; s < S; ++s)
      if (lane_of_thread() + s * warp_size == e) to[s] += v;
  }
}

// Lane k's choice k; zeros beyond the last.
struct Chosen {
  int expert;
  float logit, dweight;
};

// The backward of softmax scores p: dlogits = p * (dp - sum of p * dp), dp from loads and from weights that are not
// renormalised. Renormalised ones are a softmax of their own.
template <int S>
__device__ void softmax_back(const RouteRule& rule, const float (&x)[S], const Chosen& chosen, float z_scale,
                             float (&dp)[S]) {
  float p[S];
  const Softmax all = row_softmax(x, p);
  if (!rule.renormalize) add_to_chosen(rule, chosen.expert, rule.scale * chosen.dweight, dp);
  const float shift = warp_dot(p, dp) - (z_scale != 0 ? 2 * z_scale * log_sum(all) : 0.0f);
#pragma unroll
  for (int s = 0; s < S; ++s) dp[s] = p[s] * (dp[s] - shift);  // the gradient of the logit from here on
  if (!rule.renormalize) return;
  const float weight = weigh(rule, chosen.logit, all).value, mean = warp_sum(weight * chosen.dweight);
  add_to_chosen(rule, chosen.expert, rule.scale * weight * (chosen.dweight - mean), dp);
}

// The backward of sigmoid scores: dlogits = score * (1 - score) * ds.
template <int S>
__device__ void sigmoid_back(const RouteRule& rule, const float (&x)[S], const Chosen& chosen, bool loads,
                             float z_scale, float (&ds)[S]) {
  float score[S], sum = 0;
#pragma unroll
  for (int s = 0; s < S; ++s) sum += score[s] = sigmoid_of(x[s]).score;
  if (loads) {
    const float divisor = warp_sum(sum) + route_tiny, mean = warp_dot(score, ds) / divisor;
#pragma unroll
    for (int s = 0; s < S; ++s) ds[s] = (ds[s] - mean) / divisor;
  }
  const ChosenWeight weight = weigh(rule, chosen.logit, {});
  const float mean = rule.renormalize ? warp_sum(weight.value * chosen.dweight) : 0.0f;
  add_to_chosen(rule, chosen.expert, rule.scale * (chosen.dweight - mean) / weight.divisor, ds);
#pragma unroll
  for (int s = 0; s < S; ++s) ds[s] *= score[s] * sigmoid_of(x[s]).rest;  // the gradient of the logit from here on
  if (z_scale == 0) return;
  float p[S];
  const float factor = 2 * z_scale * log_sum(row_softmax(x, p));
#pragma unroll
  for (int s = 0; s < S; ++s) ds[s] += factor * p[s];
}

template <int S>
__global__ void __launch_bounds__(route_warps* warp_size) route_back(RouteBack args) {
  const RouteRule& rule = args.rule;
  const int lane = lane_of_thread();
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * route_warps + warp_of_thread();
  if (row >= args.parts.rows) return;
  const float* logits = args.logits + row * rule.experts;
  Chosen chosen{.expert = 0, .logit = 0, .dweight = 0};
  bool broken = false;
  if (lane < rule.topk) {
    chosen.expert = args.experts[row * rule.topk + lane];
    broken = chosen.expert < 0 || chosen.expert >= rule.experts;
    chosen.logit = broken ? 0.0f : logits[chosen.expert];
    chosen.dweight = args.dweights[row * rule.topk + lane];
  }
  broken = __any_sync(all_lanes, broken);
  const float z_scale = args.z_scale ? *args.z_scale * args.z_coefficient : 0.0f;
  float x[S], gradient[S] = {};
  load_experts(logits, rule.experts, minus_infinity(), x);
  if (args.loads) {
    const std::int64_t part = (args.parts.first_row + row) / args.parts.part_rows;
    load_experts(args.loads + part * rule.experts, rule.experts, 0.0f, gradient);
  }
  if (rule.sigmoid)
    sigmoid_back(rule, x, chosen, args.loads != nullptr, z_scale, gradient);
  else
    softmax_back(rule, x, chosen, z_scale, gradient);
#pragma unroll
  for (int s = 0; s < S; ++s) {
    const int e = lane + s * warp_size;
    if (e < rule.experts) args.dlogits[row * rule.experts + e] = broken ? broken_value() : gradient[s];
  }
}

}  // namespace

cudaError_t launch_route_back(const RouteBack& args, cudaStream_t stream) {
  if (args.parts.rows == 0) return cudaSuccess;
  return with_slots(args.rule.experts, [&](auto slots) {
    const auto blocks = static_cast<unsigned>(divide_up(args.parts.rows, route_warps));
    route_back<decltype(slots)::value><<<blocks, route_warps * warp_size, 0, stream>>>(args);
    return cudaGetLastError();
  });
}

}  // namespace tera::cuda::kernels
