#include "tera/backend/cpu/kernels/optim.h"

#include "tera/backend/cpu/kernels/math.h"
#include "tera/backend/cpu/kernels/rows.h"

namespace tera::cpu {
namespace {

template <class First, class Second, class Copy>
void adam(const AdamStep& step, std::int64_t begin, std::int64_t end) {
  const AdamStep s = step;  // a local copy, so that stores to the tensors cannot change it
  First* const first = static_cast<First*>(s.m);
  Second* const second = static_cast<Second*>(s.v);
  const float unbias1 = 1.0f / s.correction1, unbias2 = 1.0f / s.correction2;
  over_row(end - begin, [&, begin](auto offset, auto n) {
    const std::int64_t i = begin + offset;
    const Vec g = load(s.grad + i, n) * s.grad_factor;
    const Vec m = s.beta1 * load(first + i, n) + s.one_minus_beta1 * g;
    const Vec v = s.beta2 * load(second + i, n) + s.one_minus_beta2 * g * g;
    Vec weight = load(s.weight + i, n);
    const Vec direction = (m * unbias1) / (vsqrt(v * unbias2) + s.eps);
    weight -= s.lr * (direction + s.weight_decay * weight);
    store(first + i, m, n);
    store(second + i, v, n);
    store(s.weight + i, weight, n);
    if (s.copy) store(static_cast<Copy*>(s.copy) + i, weight, n);
    if (s.clear_grad) store(s.grad + i, zero(), n);
  });
}

template <class Copy>
void sgd(const SgdStep& step, std::int64_t begin, std::int64_t end) {
  const SgdStep s = step;
  over_row(end - begin, [&, begin](auto offset, auto n) {
    const std::int64_t i = begin + offset;
    Vec weight = load(s.weight + i, n);
    Vec direction = load(s.grad + i, n) * s.grad_factor + s.weight_decay * weight;
    if (s.momentum_buffer) {
      direction += s.momentum * load(s.momentum_buffer + i, n);
      store(s.momentum_buffer + i, direction, n);
    }
    weight -= s.lr * direction;
    store(s.weight + i, weight, n);
    if (s.copy) store(static_cast<Copy*>(s.copy) + i, weight, n);
    if (s.clear_grad) store(s.grad + i, zero(), n);
  });
}

constexpr OptimKernels table = {
    .adam = {{{adam<float, float, float>, adam<float, float, Bf16>, adam<float, float, Fp16>},
              {adam<float, Bf16, float>, adam<float, Bf16, Bf16>, adam<float, Bf16, Fp16>}},
             {{adam<Bf16, float, float>, adam<Bf16, float, Bf16>, adam<Bf16, float, Fp16>},
              {adam<Bf16, Bf16, float>, adam<Bf16, Bf16, Bf16>, adam<Bf16, Bf16, Fp16>}}},
    .sgd = {sgd<float>, sgd<Bf16>, sgd<Fp16>}};

}  // namespace

template <>
const OptimKernels& optim_kernels<TERA_ISA>() {
  return table;
}

}  // namespace tera::cpu
