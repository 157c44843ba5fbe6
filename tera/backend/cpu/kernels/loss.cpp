#include "tera/backend/cpu/kernels/loss.h"

#include <type_traits>

#include "tera/backend/cpu/kernels/rows.h"

namespace tera::cpu {
namespace {

template <class T>
float value_of(const T& x) {
  return load_tail(&x, 1)[0];
}

// The largest value, without NaN, which reappears through the exponentials.
template <class T>
float largest(const T* x, std::int64_t count) {
  const Vec lowest = splat(-__builtin_inff());
  Vec maximum[slots] = {lowest, lowest, lowest, lowest};
  reduce_row(count,
             [&](auto i, auto n, int slot) { maximum[slot] = vmax(keep(load(x + i, n), n, lowest), maximum[slot]); });
  return max_lanes(vmax(vmax(maximum[0], maximum[1]), vmax(maximum[2], maximum[3])));
}

// Sum of e^(x - shift); the exponentials replace x if requested.
template <bool keep_exponentials, class T>
float sum_exponentials(T* x, float shift, std::int64_t count) {
  Slots sum;
  reduce_row(count, [&](auto i, auto n, int slot) {
    const Vec e = vexp(load(x + i, n) - shift);
    if constexpr (keep_exponentials) store(x + i, e, n);
    sum[slot] += keep(e, n, zero());
  });
  return sum.sum();
}

// The shift of exponents: where all logits are -inf, -inf - -inf would be NaN.
float shift_of(float maximum) { return maximum == -__builtin_inff() ? 0.0f : maximum; }

// maximum: the largest logit; sum: of e^(x - maximum); chosen: the target's logit.
struct Softmax {
  float maximum, sum, chosen;

  float loss() const {
    return static_cast<float>(__builtin_log(static_cast<double>(sum)) + (static_cast<double>(maximum) - chosen));
  }
};

// column: that of the target; outside the columns it belongs to another vocabulary shard.
template <bool keep_exponentials, class T>
Softmax softmax_of_row(T* x, std::int64_t column, std::int64_t used) {
  const float maximum = largest(x, used), chosen = column >= 0 && column < used ? value_of(x[column]) : 0.0f;
  return {maximum, sum_exponentials<keep_exponentials>(x, shift_of(maximum), used), chosen};
}

Softmax merged_softmax(const CrossEntropyRows& args, std::int64_t row) {
  const auto part = [&](std::int64_t p) { return args.stats + (p * args.rows + row) * 3; };
  Softmax softmax{-__builtin_inff(), 0, 0};
  for (std::int64_t p = 0; p < args.parts; ++p)
    if (part(p)[0] > softmax.maximum) softmax.maximum = part(p)[0];
  for (std::int64_t p = 0; p < args.parts; ++p) {
    softmax.sum += part(p)[1] * vexp(splat(part(p)[0] - shift_of(softmax.maximum)))[0];
    softmax.chosen += part(p)[2];
  }
  return softmax;
}

// x holds logits or, already, e^(logit - maximum).
template <bool exponentials, class T>
void write_gradient(const CrossEntropyRows& args, T* x, std::int64_t column, const Softmax& softmax) {
  const float factor = args.scale / softmax.sum, shift = shift_of(softmax.maximum);
  over_row(args.used, [&](auto i, auto n) {
    const Vec v = load(x + i, n);
    store(x + i, (exponentials ? v : vexp(v - shift)) * factor, n);
  });
  if (column < 0 || column >= args.used) return;
  const Vec probability = vexp(splat(softmax.chosen - shift)) / softmax.sum;
  store_tail(x + column, (probability - 1.0f) * args.scale, 1);
}

// A row of logits lies in cache while it is walked three times: maximum, exponentials, gradient. Floats keep their
// exponentials in place; 16-bit storage would round them, so they are computed again.
template <bool merged, bool loss_only, class T>
void cross_entropy(const CrossEntropyRows& args, std::int64_t begin, std::int64_t end) {
  constexpr bool in_place = !merged && !loss_only && std::is_same_v<T, float>;
  for (std::int64_t row = begin; row < end; ++row) {
    T* x = static_cast<T*>(args.logits) + row * args.stride;
    const std::int64_t column = args.targets[row] - args.first;
    const bool counted = args.targets[row] >= 0;
    args.token_loss[row] = 0;
    if (counted) {
      const Softmax softmax = merged ? merged_softmax(args, row) : softmax_of_row<in_place>(x, column, args.used);
      args.token_loss[row] = softmax.loss();
      if constexpr (!loss_only) write_gradient<in_place>(args, x, column, softmax);
    }
    if constexpr (!loss_only) {
      const std::int64_t used = counted ? args.used : 0;
      std::memset(static_cast<void*>(x + used), 0, static_cast<std::size_t>(args.stride - used) * sizeof(T));
    }
  }
}

template <class T>
void stats(const SoftmaxStatsRows& args, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(args.logits) + row * args.stride;
    const std::int64_t used = args.targets[row] >= 0 ? args.used : 0;
    const Softmax softmax = softmax_of_row<false>(x, args.targets[row] - args.first, used);
    float* out = args.stats + row * 3;
    out[0] = softmax.maximum, out[1] = softmax.sum, out[2] = softmax.chosen;
  }
}

constexpr LossKernels table = {
    .cross_entropy =
        {{{cross_entropy<false, false, float>, cross_entropy<false, false, Bf16>, cross_entropy<false, false, Fp16>},
          {cross_entropy<false, true, float>, cross_entropy<false, true, Bf16>, cross_entropy<false, true, Fp16>}},
         {{cross_entropy<true, false, float>, cross_entropy<true, false, Bf16>, cross_entropy<true, false, Fp16>},
          {cross_entropy<true, true, float>, cross_entropy<true, true, Bf16>, cross_entropy<true, true, Fp16>}}},
    .stats = {stats<float>, stats<Bf16>, stats<Fp16>}};

}  // namespace

template <>
const LossKernels& loss_kernels<TERA_ISA>() {
  return table;
}

}  // namespace tera::cpu
