#pragma once
// Element types as kernels see them, and 16-byte packs of them. Arithmetic is always float.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstring>

#include "tera/backend/cuda/kernels/ptx.cuh"

namespace tera::cuda::kernels {

enum class Scalar : std::uint8_t { f32, bf16, f16 };

// launch(T{}) with the type that `scalar` names: with_type(s, [&](auto zero) { using T = decltype(zero); ... }).
template <class Launch>
auto with_type(Scalar scalar, const Launch& launch) {
  switch (scalar) {
    case Scalar::bf16: return launch(__nv_bfloat16{});
    case Scalar::f16: return launch(__half{});
    default: return launch(float{});
  }
}

// Whether memory that begins here, in rows of this stride, can be read 16 bytes at a time. A null pointer always can.
template <class T>
bool aligned16(const void* data, std::int64_t stride = 0) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && stride * static_cast<std::int64_t>(sizeof(T)) % 16 == 0;
}

}  // namespace tera::cuda::kernels

#ifdef __CUDACC__
namespace tera::cuda::kernels {

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float to_float(__half x) { return __half2float(x); }

template <class T>
__device__ inline T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ inline __half from_float<__half>(float x) {
  return __float2half_rn(x);
}

// N neighbouring elements, moved in one access (16 bytes by default).
template <class T, int N = 16 / static_cast<int>(sizeof(T))>
struct alignas(sizeof(T) * N) Pack {
  static constexpr int size = N;
  T value[N];
};

template <int N, class T>
__device__ inline Pack<T, N> load(const T* from) {
  return *reinterpret_cast<const Pack<T, N>*>(from);
}
// Stores to device memory. 16 bytes go by an instruction of their own: a plain copy of the pack compiles to four stores
// or more in some kernels.
template <class T, int N>
__device__ inline void store(T* to, const Pack<T, N>& pack) {
  if constexpr (sizeof(pack) == 16) {
    uint4 words;
    memcpy(&words, &pack, sizeof(words));
    ptx::st_global_v4(to, words);
  } else {
    *reinterpret_cast<Pack<T, N>*>(to) = pack;
  }
}

// Sum over the 32 threads of a warp, in a fixed order; every thread gets it.
template <class T>
__device__ inline T warp_sum(T value) {
  for (int lane = 16; lane > 0; lane /= 2) value += __shfl_xor_sync(0xffffffffu, value, lane);
  return value;
}
__device__ inline float warp_max(float value) {
  for (int lane = 16; lane > 0; lane /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, lane));
  return value;
}

// Sum over a block of full warps, in a fixed order; every thread gets it. shared holds 32 values.
template <class T>
__device__ inline T block_sum(T value, T* shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  value = warp_sum(value);
  __syncthreads();  // shared may still be read from an earlier call
  if (lane == 0) shared[warp] = value;
  __syncthreads();
  value = lane < static_cast<int>(blockDim.x) / 32 ? shared[lane] : T{};
  return warp_sum(value);
}

}  // namespace tera::cuda::kernels
#endif
