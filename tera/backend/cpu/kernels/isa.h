#pragma once
// Files in this folder are compiled once per instruction set, with TERA_ISA naming it, and each gives a table of
// functions: `template <> const XKernels& x_kernels<TERA_ISA>()`. Everything else in them sits in anonymous namespaces,
// and they include nothing but each other and C headers: an inline function from elsewhere, compiled here with wide
// instructions, could be the copy that the linker keeps for the whole program.

namespace tera::cpu {

enum class Isa : unsigned char { baseline, avx2, avx512 };

#if defined(__x86_64__)
inline constexpr bool has_x86_isas = true;
#else
inline constexpr bool has_x86_isas = false;
#endif

}  // namespace tera::cpu
