#include "tera/backend/cpu/kernels/latent_heads.h"

#include "tera/backend/cpu/kernels/rows.h"

namespace tera::cpu {
namespace {

template <class T>
void sum_heads(const HeadSum& args) {
  const T* x = static_cast<const T*>(args.x);
  T* out = static_cast<T*>(args.out);
  over_row(args.width, [&](auto i, auto n) {
    Vec sum = zero();
    for (std::int64_t head = 0; head < args.heads; ++head) sum += load(x + head * args.step + i, n);
    store(out + i, sum, n);
  });
}

constexpr LatentHeadKernels table = {.sum_heads = {sum_heads<float>, sum_heads<Bf16>, sum_heads<Fp16>}};

}  // namespace

template <>
const LatentHeadKernels& latent_head_kernels<TERA_ISA>() {
  return table;
}

}  // namespace tera::cpu
