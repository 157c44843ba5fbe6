#include "tera/backend/cuda/kernels/copy.cuh"

#include <type_traits>

namespace tera::cuda::kernels {
namespace {

constexpr int threads = 256;
constexpr int packs_per_thread = 4;  // loads in flight

unsigned blocks_for(std::int64_t items, std::int64_t per_block) {
  return static_cast<unsigned>((items + per_block - 1) / per_block);
}

// Converts one element; an element of the same type passes unchanged, NaN included.
template <class To, class From>
__device__ To converted(From x) {
  if constexpr (std::is_same_v<To, From>)
    return x;
  else
    return from_float<To>(to_float(x));
}

struct Offsets {
  std::int64_t src, dst;
};

// Where pack p lies on both sides. Index: 32 bits where all packs can be counted with them, since division of 64-bit
// numbers costs more than the copy.
template <class Index>
__device__ Offsets offsets_of(const Runs& runs, Index p, int pack) {
  if (runs.rank == 0) return {static_cast<std::int64_t>(p) * pack, static_cast<std::int64_t>(p) * pack};
  const auto packs_per_run = static_cast<Index>(runs.length / pack);
  Index run = p / packs_per_run;
  const std::int64_t inside = static_cast<std::int64_t>(p - run * packs_per_run) * pack;
  Offsets at{inside, inside};
  for (int d = runs.rank - 1; d >= 0; --d) {
    const auto size = static_cast<Index>(runs.outer[d]);
    const Index next = run / size;
    const auto place = static_cast<std::int64_t>(run - next * size);
    at.src += place * runs.src_stride[d];
    at.dst += place * runs.dst_stride[d];
    run = next;
  }
  return at;
}

template <class From, class To, int N, class Index>
__global__ void __launch_bounds__(threads)
    copy_runs(const From* src, To* dst, const __grid_constant__ Runs runs, Index packs) {
  const Index first = static_cast<Index>(blockIdx.x) * (threads * packs_per_thread) + threadIdx.x;
  Pack<From, N> read[packs_per_thread];
  std::int64_t to[packs_per_thread];
#pragma unroll
  for (int k = 0; k < packs_per_thread; ++k) {
    const Index p = first + k * threads;
    if (p >= packs) continue;
    const Offsets at = offsets_of(runs, p, N);
    read[k] = load<N>(src + at.src);
    to[k] = at.dst;
  }
#pragma unroll
  for (int k = 0; k < packs_per_thread; ++k) {
    if (first + k * threads >= packs) continue;
    Pack<To, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j) out.value[j] = converted<To>(read[k].value[j]);
    store(dst + to[k], out);
  }
}

template <class From, class To, int N>
void launch_packs(const void* from, void* to, const Runs& runs, cudaStream_t stream) {
  const auto* src = static_cast<const From*>(from);
  auto* dst = static_cast<To*>(to);
  const std::int64_t packs = runs.length / N * runs.count;
  const unsigned grid = blocks_for(packs, threads * packs_per_thread);
  // An index runs past the last pack by less than one block's.
  if (packs < (std::int64_t{1} << 32) - threads * packs_per_thread)
    copy_runs<From, To, N><<<grid, threads, 0, stream>>>(src, dst, runs, static_cast<std::uint32_t>(packs));
  else
    copy_runs<From, To, N><<<grid, threads, 0, stream>>>(src, dst, runs, static_cast<std::uint64_t>(packs));
}

template <class T>
bool supports_packs(const T* data, const std::int64_t (&stride)[Runs::max_rank], int rank, int pack) {
  if (reinterpret_cast<std::uintptr_t>(data) % (sizeof(T) * pack) != 0) return false;
  for (int d = 0; d < rank; ++d)
    if (stride[d] % pack != 0) return false;
  return true;
}

template <class From, class To>
cudaError_t launch_copy(const void* from, void* to, Runs runs, cudaStream_t stream) {
  const auto* src = static_cast<const From*>(from);
  auto* dst = static_cast<To*>(to);
  constexpr int pack = 16 / static_cast<int>(sizeof(From) > sizeof(To) ? sizeof(From) : sizeof(To));
  const bool vectorized = supports_packs(src, runs.src_stride, runs.rank, pack) &&
                          supports_packs(dst, runs.dst_stride, runs.rank, pack) &&
                          (runs.rank == 0 || runs.length % pack == 0);
  if (!vectorized) {
    launch_packs<From, To, 1>(src, dst, runs, stream);
    return cudaGetLastError();
  }
  const std::int64_t full = runs.length / pack * pack, rest = runs.length - full;  // a remainder has one run alone
  runs.length = full;
  if (full > 0) launch_packs<From, To, pack>(src, dst, runs, stream);
  runs.length = rest;
  if (rest > 0) launch_packs<From, To, 1>(src + full, dst + full, runs, stream);
  return cudaGetLastError();
}

// Whether two neighbours can be moved as one element of twice the size, everywhere.
bool come_in_pairs(const void* src, const void* dst, int element_bytes, const Runs& runs) {
  const auto both = reinterpret_cast<std::uintptr_t>(src) | reinterpret_cast<std::uintptr_t>(dst);
  bool even = both % (2 * static_cast<std::uintptr_t>(element_bytes)) == 0 && runs.length % 2 == 0;
  for (int d = 0; d < runs.rank; ++d) even = even && runs.src_stride[d] % 2 == 0 && runs.dst_stride[d] % 2 == 0;
  return even;
}

void halve(Runs& runs) {
  runs.length /= 2;
  for (int d = 0; d < runs.rank; ++d) {
    runs.src_stride[d] /= 2;
    runs.dst_stride[d] /= 2;
  }
}

template <class T>
__global__ void __launch_bounds__(threads) fill_all(T* out, T value, std::int64_t n) {
  constexpr int N = 16 / sizeof(T);
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x) * N;
  if (i + N <= n && reinterpret_cast<std::uintptr_t>(out) % 16 == 0) {
    Pack<T, N> pack;
#pragma unroll
    for (int j = 0; j < N; ++j) pack.value[j] = value;
    store(out + i, pack);
  } else {
    for (std::int64_t k = i; k < min(i + N, n); ++k) out[k] = value;
  }
}

template <class T>
cudaError_t launch_fill_of(void* out, std::uint64_t bits, std::int64_t n, cudaStream_t stream) {
  const unsigned grid = blocks_for(n, threads * (16 / sizeof(T)));
  fill_all<T><<<grid, threads, 0, stream>>>(static_cast<T*>(out), static_cast<T>(bits), n);
  return cudaGetLastError();
}

// splitmix64's finisher.
__device__ std::uint64_t scrambled(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

template <class T>
__global__ void __launch_bounds__(threads) random_fill(T* data, std::int64_t n, std::uint64_t seed) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (i >= n) return;
  const std::uint64_t bits = scrambled(scrambled(seed) + static_cast<std::uint64_t>(i) * 0x9e3779b97f4a7c15u);
  // The sum of four numbers that are uniform in [0,1) has mean 2 and variance 1/3.
  float sum = 0;
#pragma unroll
  for (int part = 0; part < 4; ++part) sum += static_cast<float>(bits >> (16 * part) & 0xffffu) * 0x1p-16f;
  data[i] = from_float<T>((sum - 2) * 1.7320508f);
}

}  // namespace

cudaError_t launch_move(const void* src, void* dst, int element_bytes, const Runs& runs, cudaStream_t stream) {
  if (runs.length * runs.count == 0) return cudaSuccess;
  Runs wide = runs;
  while (element_bytes < 8 && come_in_pairs(src, dst, element_bytes, wide)) {
    element_bytes *= 2;
    halve(wide);
  }
  switch (element_bytes) {
    case 1: launch_packs<std::uint8_t, std::uint8_t, 1>(src, dst, wide, stream); break;
    case 2: launch_packs<std::uint16_t, std::uint16_t, 1>(src, dst, wide, stream); break;
    case 4: launch_packs<std::uint32_t, std::uint32_t, 1>(src, dst, wide, stream); break;
    case 8: return launch_copy<std::uint64_t, std::uint64_t>(src, dst, wide, stream);
    default: return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}

cudaError_t launch_convert(const void* src, Scalar from, void* dst, Scalar to, const Runs& runs, cudaStream_t stream) {
  if (runs.length * runs.count == 0) return cudaSuccess;
  return with_type(from, [&](auto from_zero) {
    return with_type(to, [&](auto to_zero) {
      using From = decltype(from_zero);
      using To = decltype(to_zero);
      if constexpr (std::is_same_v<From, To>)
        return cudaErrorInvalidValue;  // that is a move
      else
        return launch_copy<From, To>(src, dst, runs, stream);
    });
  });
}

cudaError_t launch_fill(void* out, int element_bytes, std::uint64_t bits, std::int64_t n, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  switch (element_bytes) {
    case 1: return launch_fill_of<std::uint8_t>(out, bits, n, stream);
    case 2: return launch_fill_of<std::uint16_t>(out, bits, n, stream);
    case 4: return launch_fill_of<std::uint32_t>(out, bits, n, stream);
    case 8: return launch_fill_of<std::uint64_t>(out, bits, n, stream);
    default: return cudaErrorInvalidValue;
  }
}

cudaError_t launch_random_fill(void* data, Scalar dtype, std::int64_t n, std::uint64_t seed, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  with_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    random_fill<T><<<blocks_for(n, threads), threads, 0, stream>>>(static_cast<T*>(data), n, seed);
  });
  return cudaGetLastError();
}

}  // namespace tera::cuda::kernels
