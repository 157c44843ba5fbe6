#include "tera/backend/cpu/kernels/route.h"

#include "tera/backend/cpu/kernels/math.h"
#include "tera/backend/cpu/kernels/rows.h"

namespace tera::cpu {
namespace {

constexpr float tiny = 1e-20f;  // keeps a sum of sigmoids from being zero

// p = softmax of x; sum is NaN or 0 where there is none.
struct Softmax {
  float maximum, sum;
  float log_sum() const { return static_cast<float>(__builtin_log(static_cast<double>(sum)) + maximum); }
};
Softmax softmax(const float* x, std::int64_t count, float* p) {
  const Vec lowest = splat(-__builtin_inff());
  Vec highest = lowest;
  over_row(count, [&](auto i, auto n) { highest = vmax(keep(load(x + i, n), n, lowest), highest); });
  const float maximum = max_lanes(highest), shift = maximum == -__builtin_inff() ? 0.0f : maximum;
  Slots sums;
  reduce_row(count, [&](auto i, auto n, int slot) {
    const Vec e = vexp(load(x + i, n) - shift);
    store(p + i, e, n);
    sums[slot] += keep(e, n, zero());
  });
  const float sum = sums.sum(), factor = 1 / sum;
  over_row(count, [&](auto i, auto n) { store(p + i, load(p + i, n) * factor, n); });
  return {maximum, sum};
}

// score = sigmoid(x) and rest = 1 - score, both to full relative precision.
struct Sigmoid {
  Vec score, rest;
};
Sigmoid sigmoid_and_rest(Vec x) {
  const Vec e = vexp(-vabs(x)), near = 1.0f / (1.0f + e), far = e * near;
  return {x < 0.0f ? far : near, x < 0.0f ? near : far};
}
float sigmoids(const float* x, std::int64_t count, float* score) {
  Slots sums;
  reduce_row(count, [&](auto i, auto n, int slot) {
    const Vec s = sigmoid_and_rest(load(x + i, n)).score;
    store(score + i, s, n);
    sums[slot] += keep(s, n, zero());
  });
  return sums.sum();
}

float dot(const float* a, const float* b, std::int64_t count) {
  Slots sums;
  reduce_row(count, [&](auto i, auto n, int slot) { sums[slot] += load(a + i, n) * load(b + i, n); });
  return sums.sum();
}

// Integers in the order of floats: -0 is 0, NaN is above everything, and masked_out below.
constexpr std::int32_t masked_out = INT32_MIN;
std::int32_t rank_of(float x) {
  if (x != x) return INT32_MAX;
  const float positive_zero = x + 0.0f;
  std::int32_t bits;
  std::memcpy(&bits, &positive_zero, sizeof bits);
  return bits < 0 ? bits ^ INT32_MAX : bits;
}

// Top-k: chosen = the indices of the `wanted` highest ranks, highest first; of equal ones the lower index comes first.
void choose(const std::int32_t* rank, std::int64_t count, std::int64_t wanted, std::int32_t* chosen) {
  std::int64_t filled = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (filled == wanted && rank[i] <= rank[chosen[wanted - 1]]) continue;
    std::int64_t at = filled < wanted ? filled++ : wanted - 1;
    for (; at > 0 && rank[chosen[at - 1]] < rank[i]; --at) chosen[at] = chosen[at - 1];
    chosen[at] = static_cast<std::int32_t>(i);
  }
}

// Group-limited routing: ranks of experts outside the best groups become masked_out.
void mask_groups(const RouteRule& rule, const float* key, std::int32_t* rank) {
  const std::int64_t size = rule.experts / rule.groups;
  std::int32_t chosen[max_route_experts], group_rank[max_route_experts];
  for (std::int64_t group = 0; group < rule.groups; ++group) {
    choose(rank + group * size, size, rule.group_best, chosen);
    float score = 0;
    for (std::int64_t i = 0; i < rule.group_best; ++i) score += key[group * size + chosen[i]];
    group_rank[group] = rank_of(score);
  }
  choose(group_rank, rule.groups, rule.group_topk, chosen);
  bool stays[max_route_experts] = {};
  for (std::int64_t i = 0; i < rule.group_topk; ++i) stays[chosen[i]] = true;
  for (std::int64_t i = 0; i < rule.experts; ++i)
    if (!stays[i / size]) rank[i] = masked_out;
}

// Scores are monotonic in logits, so where only their order counts logits are used: they do not saturate.
void choose_experts(const RouteRows& args, const float* logits, const float* scores, std::int32_t* chosen) {
  const RouteRule& rule = args.rule;
  const bool by_groups = rule.group_topk < rule.groups;
  float biased[max_route_experts];
  const float* key = logits;
  if (args.bias || (by_groups && rule.group_best > 1)) {
    for (std::int64_t e = 0; e < rule.experts; ++e) biased[e] = args.bias ? scores[e] + args.bias[e] : scores[e];
    key = biased;
  }
  std::int32_t rank[max_route_experts];
  for (std::int64_t e = 0; e < rule.experts; ++e) rank[e] = rank_of(key[e]);
  if (by_groups) mask_groups(rule, key, rank);
  choose(rank, rule.experts, rule.topk, chosen);
}

void balanced_experts(const RouteRule& rule, std::int64_t row, std::int32_t* chosen) {
  const auto experts = static_cast<std::uint64_t>(rule.experts), topk = static_cast<std::uint64_t>(rule.topk);
  for (std::uint64_t k = 0; k < topk; ++k)
    chosen[k] = static_cast<std::int32_t>((static_cast<std::uint64_t>(row) * topk + k) % experts);
}

// The weights before `scale`. Renormalised softmax is the softmax of the chosen logits, which cannot underflow to zero
// altogether. divisor: the sum by which weights of sigmoids were divided.
struct ChosenWeights {
  float value[max_route_topk], divisor = 1;
};
ChosenWeights weigh(const RouteRule& rule, const float* logits, const float* scores, const std::int32_t* chosen) {
  ChosenWeights weights;
  if (rule.renormalize && !rule.sigmoid) {
    float chosen_logits[max_route_topk];
    for (std::int64_t k = 0; k < rule.topk; ++k) chosen_logits[k] = logits[chosen[k]];
    softmax(chosen_logits, rule.topk, weights.value);
    // A row with a NaN stays NaN, even if the NaN was not chosen.
    const float broken = scores[0] * 0;
    for (std::int64_t k = 0; k < rule.topk; ++k) weights.value[k] += broken;
    return weights;
  }
  float sum = 0;
  for (std::int64_t k = 0; k < rule.topk; ++k) sum += weights.value[k] = scores[chosen[k]];
  if (!rule.renormalize) return weights;
  weights.divisor = sum + tiny;
  for (std::int64_t k = 0; k < rule.topk; ++k) weights.value[k] /= weights.divisor;
  return weights;
}

void add_row(const RouteRows& args, const RouteSums& sums, const float* logits, const float* scores, float score_sum,
             const std::int32_t* chosen) {
  const RouteRule& rule = args.rule;
  if (sums.counts)
    for (std::int64_t k = 0; k < rule.topk; ++k) ++sums.counts[chosen[k]];
  if (sums.scores) {
    const float factor = rule.sigmoid ? 1 / (score_sum + tiny) : 1.0f;
    over_row(rule.experts, [&](auto i, auto n) {
      store(sums.scores + i, load(sums.scores + i, n) + load(scores + i, n) * factor, n);
    });
  }
  if (sums.z) {
    float unused[max_route_experts];
    const float log_sum = softmax(logits, rule.experts, unused).log_sum();
    *sums.z += log_sum * log_sum;
  }
}

void route(const RouteRows& args, const RouteSums& sums, std::int64_t begin, std::int64_t end) {
  const RouteRule& rule = args.rule;
  const auto row_bytes = static_cast<std::size_t>(rule.experts) * sizeof(float);
  if (sums.scores) std::memset(sums.scores, 0, row_bytes);
  if (sums.counts) std::memset(sums.counts, 0, row_bytes);
  if (sums.z) *sums.z = 0;
  float scores[max_route_experts];
  for (std::int64_t row = begin; row < end; ++row) {
    const float* logits = args.logits + row * rule.experts;
    std::int32_t* chosen = args.experts + row * rule.topk;
    float score_sum = 1;
    if (rule.sigmoid)
      score_sum = sigmoids(logits, rule.experts, scores);
    else
      softmax(logits, rule.experts, scores);
    if (rule.force_balance)
      balanced_experts(rule, args.rows[row], chosen);
    else
      choose_experts(args, logits, scores, chosen);
    const ChosenWeights weights = weigh(rule, logits, scores, chosen);
    for (std::int64_t k = 0; k < rule.topk; ++k) args.weights[row * rule.topk + k] = weights.value[k] * rule.scale;
    add_row(args, sums, logits, scores, score_sum, chosen);
  }
}

// Gradient through softmax scores p: dlogits = p * (dp - sum of p * dp), dp from loads and from weights that are not
// renormalised. Renormalised weights are a softmax of the chosen logits.
void softmax_back(const RouteRule& rule, const float* logits, const std::int32_t* chosen, const float* dweights,
                  const float* loads, float z_scale, float* dlogits) {
  float p[max_route_experts], dp[max_route_experts];
  const Softmax all = softmax(logits, rule.experts, p);
  for (std::int64_t e = 0; e < rule.experts; ++e) dp[e] = loads ? loads[e] : 0.0f;
  if (!rule.renormalize)
    for (std::int64_t k = 0; k < rule.topk; ++k) dp[chosen[k]] += rule.scale * dweights[k];
  const float shift = dot(p, dp, rule.experts) - (z_scale != 0 ? 2 * z_scale * all.log_sum() : 0.0f);
  over_row(rule.experts, [&](auto i, auto n) { store(dlogits + i, load(p + i, n) * (load(dp + i, n) - shift), n); });
  if (!rule.renormalize) return;
  const ChosenWeights weights = weigh(rule, logits, p, chosen);
  const float mean = dot(weights.value, dweights, rule.topk);
  for (std::int64_t k = 0; k < rule.topk; ++k)
    dlogits[chosen[k]] += rule.scale * weights.value[k] * (dweights[k] - mean);
}

// Gradient through sigmoid scores s: dlogits = s * (1 - s) * ds.
void sigmoid_back(const RouteRule& rule, const float* logits, const std::int32_t* chosen, const float* dweights,
                  const float* loads, float z_scale, float* dlogits) {
  float s[max_route_experts], ds[max_route_experts];
  const float divisor = sigmoids(logits, rule.experts, s) + tiny;
  const float mean_load = loads ? dot(s, loads, rule.experts) / divisor : 0.0f;
  for (std::int64_t e = 0; e < rule.experts; ++e) ds[e] = loads ? (loads[e] - mean_load) / divisor : 0.0f;
  const ChosenWeights weights = weigh(rule, logits, s, chosen);
  const float mean = rule.renormalize ? dot(weights.value, dweights, rule.topk) : 0.0f;
  for (std::int64_t k = 0; k < rule.topk; ++k) ds[chosen[k]] += rule.scale * (dweights[k] - mean) / weights.divisor;
  float p[max_route_experts] = {};
  const float z_factor = z_scale != 0 ? 2 * z_scale * softmax(logits, rule.experts, p).log_sum() : 0.0f;
  over_row(rule.experts, [&](auto i, auto n) {
    const Sigmoid sigmoid = sigmoid_and_rest(load(logits + i, n));
    store(dlogits + i, sigmoid.score * sigmoid.rest * load(ds + i, n) + z_factor * load(p + i, n), n);
  });
}

void back(const RouteBackRows& args, std::int64_t begin, std::int64_t end) {
  const RouteRule& rule = args.rule;
  const auto of_row = rule.sigmoid ? sigmoid_back : softmax_back;
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t part = args.part_rows == 0 ? 0 : (args.first_row + row) / args.part_rows;
    of_row(rule, args.logits + row * rule.experts, args.experts + row * rule.topk, args.dweights + row * rule.topk,
           args.loads ? args.loads + part * rule.experts : nullptr, args.z_scale, args.dlogits + row * rule.experts);
  }
}

constexpr RouteKernels table = {.route = route, .back = back};

}  // namespace

template <>
const RouteKernels& route_kernels<TERA_ISA>() {
  return table;
}

}  // namespace tera::cpu
