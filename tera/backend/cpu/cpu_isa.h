#pragma once
#include <string_view>

#include "tera/backend/cpu/kernels/isa.h"
#include "tera/base/enum_names.h"

namespace tera {

template <>
struct EnumNames<cpu::Isa> {
  static constexpr std::array values{std::pair{cpu::Isa::baseline, std::string_view("baseline")},
                                     std::pair{cpu::Isa::avx2, std::string_view("avx2")},
                                     std::pair{cpu::Isa::avx512, std::string_view("avx512")}};
};

namespace cpu {

bool supports(Isa isa);
Isa best_isa();  // the best that this machine supports

// The table of kernels for an instruction set: pick(isa, []<Isa i>() -> const XKernels& { return x_kernels<i>(); }).
template <class Get>
const auto& pick(Isa isa, Get get) {
  if constexpr (has_x86_isas) {
    if (isa == Isa::avx512) return get.template operator()<Isa::avx512>();
    if (isa == Isa::avx2) return get.template operator()<Isa::avx2>();
  }
  return get.template operator()<Isa::baseline>();
}

}  // namespace cpu
}  // namespace tera
