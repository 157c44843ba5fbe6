#include "tera/backend/cpu/kernels/loss.h"

#include <type_traits>

#include "tera/backend/cpu/kernels/rows.h"

namespace tera::cpu {
namespace {

template <class T>
float value_of(const T& x) {
  return load_part(&x, 1)[0];
}

// The largest value, leaving out NaN, which comes back through the exponentials.
template <class T>
float largest(const T* x, std::int64_t count) {
  const Vec lowest = splat(-__builtin_inff());
  Vec most[slots] = {lowest, lowest, lowest, lowest};
  reduce_row(count, [&](auto i, auto n, int slot) { most[slot] = vmax(keep(load(x + i, n), n, lowest), most[slot]); });
  return max_lanes(vmax(vmax(most[0], most[1]), vmax(most[2], most[3])));
}

// Sum of e^(x - shift); the exponentials themselves replace x when asked for.
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

// A row of logits lies in cache while it is walked three times: maximum, exponentials, gradient. Floats keep their
// exponentials in place; 16-bit storage would round them, so they are computed again.
template <bool loss_only, class T>
void cross_entropy_row(const CrossEntropyRows& args, T* x, std::int32_t target, float& loss) {
  constexpr bool in_place = !loss_only && std::is_same_v<T, float>;
  const float most = largest(x, args.vocab), chosen = value_of(x[target]);
  const float sum = sum_exponentials<in_place>(x, most, args.vocab);
  loss = static_cast<float>(__builtin_log(static_cast<double>(sum)) + (static_cast<double>(most) - chosen));
  if constexpr (!loss_only) {
    const float factor = args.scale / sum;
    over_row(args.vocab, [&](auto i, auto n) {
      const Vec v = load(x + i, n);
      store(x + i, (in_place ? v : vexp(v - most)) * factor, n);
    });
    const Vec probability = vexp(splat(chosen - most)) / sum;
    store_part(x + target, (probability - 1.0f) * args.scale, 1);
  }
}

template <bool loss_only, class T>
void cross_entropy(const CrossEntropyRows& args, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    T* x = static_cast<T*>(args.logits) + row * args.stride;
    const std::int32_t target = args.targets[row];
    const bool counted = target >= 0;
    if (counted)
      cross_entropy_row<loss_only>(args, x, target, args.token_loss[row]);
    else
      args.token_loss[row] = 0;
    if constexpr (!loss_only) {
      const std::int64_t used = counted ? args.vocab : 0;
      std::memset(static_cast<void*>(x + used), 0, static_cast<std::size_t>(args.stride - used) * sizeof(T));
    }
  }
}

constexpr LossKernels table = {
    .cross_entropy = {{cross_entropy<false, float>, cross_entropy<false, Bf16>, cross_entropy<false, Fp16>},
                      {cross_entropy<true, float>, cross_entropy<true, Bf16>, cross_entropy<true, Fp16>}}};

}  // namespace

template <>
const LossKernels& loss_kernels<TERA_ISA>() {
  return table;
}

}  // namespace tera::cpu
