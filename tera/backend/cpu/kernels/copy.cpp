#include "tera/backend/cpu/kernels/copy.h"

#include "tera/backend/cpu/kernels/rows.h"

namespace tera::cpu {
namespace {

template <class From, class To>
void convert(const void* src, void* dst, std::int64_t count) {
  const auto* from = static_cast<const From*>(src);
  auto* to = static_cast<To*>(dst);
  over_row(count, [&](auto i, auto n) { store(to + i, load(from + i, n), n); });
}

// Equal dtypes are left out: the op copies their bytes.
constexpr CopyKernels table = {.convert = {{nullptr, convert<float, Bf16>, convert<float, Fp16>},
                                           {convert<Bf16, float>, nullptr, convert<Bf16, Fp16>},
                                           {convert<Fp16, float>, convert<Fp16, Bf16>, nullptr}}};

}  // namespace

template <>
const CopyKernels& copy_kernels<TERA_ISA>() {
  return table;
}

}  // namespace tera::cpu
