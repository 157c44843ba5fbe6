#include "tera/backend/cpu/kernels/expert_rows.h"

#include "tera/backend/cpu/kernels/rows.h"

namespace tera::cpu {
namespace {

template <class T>
void unpermute(const UnpermuteForward& args, std::int64_t begin, std::int64_t end) {
  const std::int64_t width = args.width;
  for (std::int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(args.x);
    const T* residual = args.residual ? static_cast<const T*>(args.residual) + row * width : nullptr;
    const std::int32_t* places = args.places + row * args.topk;
    T* y = static_cast<T*>(args.y) + row * width;
    over_row(width, [&](auto i, auto n) {
      Vec sum = residual ? load(residual + i, n) : zero();
      for (std::int64_t k = 0; k < args.topk; ++k)
        if (places[k] >= 0) sum += load(x + places[k] * width + i, n);
      store(y + i, sum, n);
    });
  }
}

constexpr ExpertRowKernels table = {.unpermute = {unpermute<float>, unpermute<Bf16>, unpermute<Fp16>}};

}  // namespace

template <>
const ExpertRowKernels& expert_row_kernels<TERA_ISA>() {
  return table;
}

}  // namespace tera::cpu
