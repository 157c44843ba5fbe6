#pragma once
// Kernels that walk a matrix of rows: how threads are laid over it, and packs of elements as floats.

#include <type_traits>

#include "tera/backend/cuda/kernels/ptx.cuh"
#include "tera/backend/cuda/kernels/types.cuh"

namespace tera::cuda::kernels {

// launch(N) with the elements a thread moves at a time, as a compile-time constant: 16 bytes where everything is
// aligned and divides, else one.
template <class T, class Launch>
auto with_pack(bool vectorized, const Launch& launch) {
  if (vectorized) return launch(std::integral_constant<int, 16 / static_cast<int>(sizeof(T))>{});
  return launch(std::integral_constant<int, 1>{});
}

inline std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// One thread per pack of columns; blocks beside each other cover a row, blocks below each other the rows, several per
// thread so that loads overlap. No thread divides an index.
inline constexpr int row_threads = 128;
inline dim3 row_grid(std::int64_t rows, std::int64_t packs, int rows_per_thread) {
  constexpr std::int64_t max_y = 65535;  // what CUDA allows; kernels loop over the rest
  const std::int64_t y = divide_up(rows, rows_per_thread);
  return {static_cast<unsigned>(divide_up(packs, row_threads)), static_cast<unsigned>(y < max_y ? y : max_y)};
}

}  // namespace tera::cuda::kernels

#ifdef __CUDACC__
namespace tera::cuda::kernels {

// A pack's elements as floats, and back. Pairs of 16-bit elements are taken as words of 32 bits: given single
// elements, the compiler would keep each in a register of its own from the load on.
template <class T, int N>
__device__ inline void unpack(const Pack<T, N>& pack, float (&out)[N]) {
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
    std::uint32_t words[N / 2];
    memcpy(words, &pack, sizeof(words));
#pragma unroll
    for (int j = 0; j < N; j += 2) {
      if constexpr (std::is_same_v<T, __nv_bfloat16>) {  // the upper half of a float
        out[j] = __uint_as_float(words[j / 2] << 16);
        out[j + 1] = __uint_as_float(words[j / 2] & 0xffff0000u);
      } else {
        __half2 pair;
        memcpy(&pair, &words[j / 2], sizeof(pair));
        const float2 both = __half22float2(pair);
        out[j] = both.x;
        out[j + 1] = both.y;
      }
    }
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j) out[j] = to_float(pack.value[j]);
  }
}

template <class T, int N>
__device__ inline Pack<T, N> packed(const float (&in)[N]) {
  Pack<T, N> pack;
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
    std::uint32_t words[N / 2];
#pragma unroll
    for (int j = 0; j < N; j += 2) {
      if constexpr (std::is_same_v<T, __nv_bfloat16>) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(in[j], in[j + 1]);
        memcpy(&words[j / 2], &pair, sizeof(pair));
      } else {
        const __half2 pair = __floats2half2_rn(in[j], in[j + 1]);
        memcpy(&words[j / 2], &pair, sizeof(pair));
      }
    }
    memcpy(&pack, words, sizeof(words));
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j) pack.value[j] = from_float<T>(in[j]);
  }
  return pack;
}

// A pack of N times this value.
template <class T, int N>
__device__ inline Pack<T, N> filled(float value) {
  float values[N];
#pragma unroll
  for (int j = 0; j < N; ++j) values[j] = value;
  return packed<T>(values);
}

// N floats of device memory, 16 bytes at a time where N allows; they are aligned accordingly.
template <int N>
__device__ inline void load_floats(const float* from, float (&out)[N]) {
  constexpr int step = N % 4 == 0 ? 4 : 1;
#pragma unroll
  for (int j = 0; j < N; j += step) {
    const Pack<float, step> part = load<step>(from + j);
#pragma unroll
    for (int i = 0; i < step; ++i) out[j + i] = part.value[i];
  }
}
template <int N>
__device__ inline void store_floats(float* to, const float (&in)[N]) {
  constexpr int step = N % 4 == 0 ? 4 : 1;
#pragma unroll
  for (int j = 0; j < N; j += step) {
    Pack<float, step> part;
#pragma unroll
    for (int i = 0; i < step; ++i) part.value[i] = in[j + i];
    store(to + j, part);
  }
}

inline constexpr float log2_e = 1.44269504f;

// 2^x within 2 ulp; results below the normal range become 0. One instruction.
__device__ inline float exp2_approx(float x) { return ptx::ex2_approx_ftz(x); }
// 1/x within 1 ulp; 0 where the result would lie below the normal range.
__device__ inline float reciprocal_approx(float x) { return ptx::rcp_approx_ftz(x); }

// The value of results for an id outside its table: memory outside of it must not be read, reporting an error would
// wait for the device, and a broken row must not look sound.
__device__ inline float broken_value() { return __int_as_float(0x7fc00000); }  // NaN

}  // namespace tera::cuda::kernels
#endif
