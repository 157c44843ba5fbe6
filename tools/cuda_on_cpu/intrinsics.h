#pragma once
// Functions of CUDA C++ that one thread computes by itself. Those of cuda_fp16.h and cuda_bf16.h work on the host as
// they are.

#include <bit>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <type_traits>

using std::isfinite;
using std::isinf;
using std::isnan;

inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<std::uint64_t>(a) * b >> 32);
}

inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
// Sine and cosine of pi * x. Multiples of 1/2 are exact, as on a GPU.
inline void sincospi(double x, double* sine, double* cosine) {
  const double quarters = std::nearbyint(2 * x), rest = (x - quarters / 2) * std::numbers::pi;
  const double s = std::sin(rest), c = std::cos(rest);
  switch (static_cast<long long>(std::fmod(quarters, 4.0)) & 3) {
    case 0: *sine = s, *cosine = c; break;
    case 1: *sine = c, *cosine = -s; break;
    case 2: *sine = -s, *cosine = -c; break;
    default: *sine = -c, *cosine = s; break;
  }
}
inline void sincospif(float x, float* sine, float* cosine) {
  double s, c;
  sincospi(x, &s, &c);
  *sine = static_cast<float>(s), *cosine = static_cast<float>(c);
}

template <class T>
T __ldg(const T* from) {
  return *from;
}
template <class A, class B>
auto min(A a, B b) {
  using C = std::common_type_t<A, B>;
  return static_cast<C>(b) < static_cast<C>(a) ? static_cast<C>(b) : static_cast<C>(a);
}
template <class A, class B>
auto max(A a, B b) {
  using C = std::common_type_t<A, B>;
  return static_cast<C>(a) < static_cast<C>(b) ? static_cast<C>(b) : static_cast<C>(a);
}

// Relaxed, as on a GPU. Sums of floating point are left out: they would depend on the order of threads.
template <class T>
T atomicAdd(T* to, std::type_identity_t<T> value) {
  static_assert(std::is_integral_v<T>, "the order of threads would show in the last bits");
  return __atomic_fetch_add(to, value, __ATOMIC_RELAXED);
}
template <class T>
T atomicMax(T* to, std::type_identity_t<T> value) {
  static_assert(std::is_integral_v<T>);
  T old = __atomic_load_n(to, __ATOMIC_RELAXED);
  while (old < value && !__atomic_compare_exchange_n(to, &old, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return old;
}
template <class T>
T atomicCAS(T* to, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  __atomic_compare_exchange_n(to, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}
