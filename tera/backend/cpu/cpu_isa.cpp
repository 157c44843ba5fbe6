#include "tera/backend/cpu/cpu_isa.h"

namespace tera::cpu {

bool supports(Isa isa) {
  if (isa == Isa::baseline) return true;
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (isa == Isa::avx2) return avx2;
  return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

Isa best_isa() { return supports(Isa::avx512) ? Isa::avx512 : supports(Isa::avx2) ? Isa::avx2 : Isa::baseline; }

}  // namespace tera::cpu
