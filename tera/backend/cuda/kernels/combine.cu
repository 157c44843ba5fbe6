#include "tera/backend/cuda/kernels/combine.cuh"

#include <type_traits>

#include "tera/backend/cuda/kernels/rows.cuh"

namespace tera::cuda::kernels {
namespace {

constexpr int threads = 256;

// 16-bit floats are combined as floats, everything else in its own type.
template <class T>
using Inside = std::conditional_t<std::is_same_v<T, __nv_bfloat16> || std::is_same_v<T, __half>, float, T>;

template <class T>
__device__ Inside<T> widened(T x) {
  if constexpr (std::is_same_v<T, Inside<T>>)
    return x;
  else
    return to_float(x);
}

template <class T>
__device__ T narrowed(Inside<T> x) {
  if constexpr (std::is_same_v<T, Inside<T>>)
    return x;
  else
    return from_float<T>(x);
}

template <Combine how, class T>
__device__ T combined(T a, T b) {
  if constexpr (how != Combine::max)
    return a + b;
  else if constexpr (std::is_floating_point_v<T>)
    return b > a || b != b ? b : a;  // a NaN stays
  else
    return b > a ? b : a;
}

template <class T, int N, Combine how>
__global__ void __launch_bounds__(threads) combine(const __grid_constant__ CombineLaunch launch, std::int64_t first) {
  const std::int64_t i = first + (static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x) * N;
  if (i >= launch.n) return;
  Inside<T> total[N];
  const Pack<T, N> begin = load<N>(static_cast<const T*>(launch.sources[0]) + i);
#pragma unroll
  for (int j = 0; j < N; ++j) total[j] = widened(begin.value[j]);
  for (int s = 1; s < launch.number; ++s) {
    const Pack<T, N> next = load<N>(static_cast<const T*>(launch.sources[s]) + i);
#pragma unroll
    for (int j = 0; j < N; ++j) total[j] = combined<how>(total[j], widened(next.value[j]));
  }
  Pack<T, N> out;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    if constexpr (how == Combine::mean) total[j] = total[j] / static_cast<Inside<T>>(launch.number);
    out.value[j] = narrowed<T>(total[j]);
  }
  store(static_cast<T*>(launch.out) + i, out);
}

template <class T, int N, Combine how>
void launch_packs(CombineLaunch launch, std::int64_t first, std::int64_t end, cudaStream_t stream) {
  if (first >= end) return;
  launch.n = end;
  const auto blocks = static_cast<unsigned>(divide_up(end - first, static_cast<std::int64_t>(threads) * N));
  combine<T, N, how><<<blocks, threads, 0, stream>>>(launch, first);
}

template <class T, Combine how>
cudaError_t launch_as(const CombineLaunch& launch, cudaStream_t stream) {
  constexpr int pack = 16 / static_cast<int>(sizeof(T));
  bool aligned = aligned16<T>(launch.out);
  for (int s = 0; s < launch.number; ++s) aligned = aligned && aligned16<T>(launch.sources[s]);
  const std::int64_t full = aligned ? launch.n / pack * pack : 0;
  launch_packs<T, pack, how>(launch, 0, full, stream);
  launch_packs<T, 1, how>(launch, full, launch.n, stream);
  return cudaGetLastError();
}

template <class Float>
cudaError_t launch_float(const CombineLaunch& launch, cudaStream_t stream) {
  switch (launch.how) {
    case Combine::sum: return launch_as<Float, Combine::sum>(launch, stream);
    case Combine::mean: return launch_as<Float, Combine::mean>(launch, stream);
    case Combine::max: return launch_as<Float, Combine::max>(launch, stream);
  }
  return cudaErrorInvalidValue;
}

// Sums are made of unsigned integers, which may wrap; the maximum is of signed ones.
template <class Signed>
cudaError_t launch_integer(const CombineLaunch& launch, cudaStream_t stream) {
  switch (launch.how) {
    case Combine::sum: return launch_as<std::make_unsigned_t<Signed>, Combine::sum>(launch, stream);
    case Combine::max: return launch_as<Signed, Combine::max>(launch, stream);
    case Combine::mean: break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t launch_combine(const CombineLaunch& launch, cudaStream_t stream) {
  switch (launch.element) {
    case Element::f32: return launch_float<float>(launch, stream);
    case Element::bf16: return launch_float<__nv_bfloat16>(launch, stream);
    case Element::f16: return launch_float<__half>(launch, stream);
    case Element::f64: return launch_float<double>(launch, stream);
    case Element::i32: return launch_integer<std::int32_t>(launch, stream);
    case Element::i64: return launch_integer<std::int64_t>(launch, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace tera::cuda::kernels
