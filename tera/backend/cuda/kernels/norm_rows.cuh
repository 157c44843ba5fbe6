#pragma once
// What the norm kernels share: a vector's offset, reductions over the threads of a vector, the arithmetic of a pack.

#include "tera/backend/cuda/kernels/norm.cuh"
#include "tera/backend/cuda/kernels/rows.cuh"

#ifdef __CUDACC__
namespace tera::cuda::kernels {

// Vector v's first element, in a tensor whose rows are `stride` apart.
__device__ inline std::int64_t offset_of(const NormShape& shape, int v, std::int64_t stride) {
  if (shape.heads == 1) return v * stride;
  const int row = v / shape.heads;
  return row * stride + static_cast<std::int64_t>(v - row * shape.heads) * shape.width;
}

// Sum over `lanes` neighbouring threads of a warp, a power of two; every one of them gets it. All of the warp calls it.
__device__ inline float lanes_sum(float value, int lanes) {
  for (int other = lanes / 2; other > 0; other /= 2) value += __shfl_xor_sync(0xffffffffu, value, other);
  return value;
}

template <class T, int N>
__device__ inline float sum_of(const Pack<T, N>& pack) {
  float values[N], sum = 0.0f;
  unpack(pack, values);
#pragma unroll
  for (int j = 0; j < N; ++j) sum += values[j];
  return sum;
}

template <class T, int N>
__device__ inline float squares_of(const Pack<T, N>& pack, float mean) {
  float values[N], sum = 0.0f;
  unpack(pack, values);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const float centred = values[j] - mean;
    sum += centred * centred;
  }
  return sum;
}

// Only RMSNorm rounds before the weight is applied: published models were trained so.
template <bool layer, class T>
__device__ inline float normalised(float x, float mean, float rstd) {
  const float exact = (x - mean) * rstd;
  return layer ? exact : to_float(from_float<T>(exact));
}

}  // namespace tera::cuda::kernels
#endif
