#include "tera/backend/cpu/kernels/copy.h"

#include "tera/backend/cpu/kernels/rows.h"

namespace tera::cpu {
namespace {

// Plain vector moves. On large blocks some C libraries take `rep movsb` for memcpy, which is half as fast on a virtual
// machine.
void move(const void* src, void* dst, std::int64_t bytes) {
  const auto* from = static_cast<const unsigned char*>(src);
  auto* to = static_cast<unsigned char*>(dst);
  constexpr auto step = static_cast<std::int64_t>(slots * sizeof(Vec));
  std::int64_t i = 0;
  for (; i + step <= bytes; i += step) {
    Vec part[slots];
    std::memcpy(part, from + i, sizeof part);
    std::memcpy(to + i, part, sizeof part);
  }
  std::memcpy(to + i, from + i, static_cast<std::size_t>(bytes - i));
}

template <class From, class To>
void convert(const void* src, void* dst, std::int64_t count) {
  const auto* from = static_cast<const From*>(src);
  auto* to = static_cast<To*>(dst);
  over_row(count, [&](auto i, auto n) { store(to + i, load(from + i, n), n); });
}

constexpr CopyKernels table = {.move = move,
                               .convert = {{nullptr, convert<float, Bf16>, convert<float, Fp16>},
                                           {convert<Bf16, float>, nullptr, convert<Bf16, Fp16>},
                                           {convert<Fp16, float>, convert<Fp16, Bf16>, nullptr}}};

}  // namespace

template <>
const CopyKernels& copy_kernels<TERA_ISA>() {
  return table;
}

}  // namespace tera::cpu
