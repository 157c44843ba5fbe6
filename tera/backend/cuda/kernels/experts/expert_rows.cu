// MoE permute and unpermute. A warp moves a row: its source is looked up once, and short rows leave few threads idle.

#include "tera/backend/cuda/kernels/experts/expert_rows.cuh"

#include "tera/backend/cuda/kernels/rows.cuh"

namespace tera::cuda::kernels {
namespace {

constexpr int block_warps = 8, block_threads = 32 * block_warps;
constexpr int packs_in_flight = 4, rows_in_flight = 4;  // loads in flight per thread

__device__ std::int64_t row_of_warp() { return static_cast<std::int64_t>(blockIdx.x) * block_warps + threadIdx.x / 32; }
template <int N>
__device__ std::int64_t first_column() {
  return static_cast<std::int64_t>(threadIdx.x % 32) * N;
}

template <class T, int N>
__global__ void __launch_bounds__(block_threads) permute(Permute args) {
  const std::int64_t row = row_of_warp(), width = args.width;
  if (row >= args.rows) return;
  const std::int32_t source = args.sources[row];
  if (source < -1) return;
  T* y = static_cast<T*>(args.y) + row * width;
  const std::int64_t token = source / args.topk;
  if (source < 0 || token >= args.tokens) {
    const Pack<T, N> fill = filled<T, N>(source < 0 ? 0.0f : broken_value());
    for (std::int64_t column = first_column<N>(); column < width; column += 32 * N) store(y + column, fill);
    return;
  }
  const T* x = static_cast<const T*>(args.x) + token * width;
  for (std::int64_t begin = first_column<N>(); begin < width; begin += packs_in_flight * 32 * N) {
    Pack<T, N> packs[packs_in_flight];
#pragma unroll
    for (int u = 0; u < packs_in_flight; ++u)
      if (begin + u * 32 * N < width) packs[u] = load<N>(x + begin + u * 32 * N);
#pragma unroll
    for (int u = 0; u < packs_in_flight; ++u)
      if (begin + u * 32 * N < width) store(y + begin + u * 32 * N, packs[u]);
  }
}

template <class T, int N>
__global__ void __launch_bounds__(block_threads) unpermute(Unpermute args) {
  const std::int64_t token = row_of_warp(), width = args.width;
  if (token >= args.tokens) return;
  const std::int32_t* places = args.places + token * args.topk;
  for (std::int64_t column = first_column<N>(); column < width; column += 32 * N) {
    const T* x = static_cast<const T*>(args.x) + column;
    float sum[N] = {};
    if (args.residual) unpack(load<N>(static_cast<const T*>(args.residual) + token * width + column), sum);
    for (std::int64_t begin = 0; begin < args.topk; begin += rows_in_flight) {
      Pack<T, N> rows[rows_in_flight];
      bool adds[rows_in_flight];
#pragma unroll
      for (int u = 0; u < rows_in_flight; ++u) {
        const std::int64_t place = begin + u < args.topk ? places[begin + u] : -1;
        adds[u] = place >= 0;
        if (!adds[u]) continue;
        rows[u] = place < args.rows ? load<N>(x + place * width) : filled<T, N>(broken_value());
      }
#pragma unroll
      for (int u = 0; u < rows_in_flight; ++u) {
        if (!adds[u]) continue;
        float value[N];
        unpack(rows[u], value);
#pragma unroll
        for (int j = 0; j < N; ++j) sum[j] += value[j];
      }
    }
    store(static_cast<T*>(args.y) + token * width + column, packed<T>(sum));
  }
}

unsigned blocks_for(std::int64_t rows) { return static_cast<unsigned>(divide_up(rows, block_warps)); }

}  // namespace

cudaError_t launch_permute(const Permute& args, cudaStream_t stream) {
  if (args.rows == 0 || args.width == 0) return cudaSuccess;
  with_type(args.scalar, [&](auto zero) {
    using T = decltype(zero);
    with_pack<T>(aligned16<T>(args.x, args.width) && aligned16<T>(args.y), [&](auto pack) {
      permute<T, decltype(pack)::value><<<blocks_for(args.rows), block_threads, 0, stream>>>(args);
    });
  });
  return cudaGetLastError();
}

cudaError_t launch_unpermute(const Unpermute& args, cudaStream_t stream) {
  if (args.tokens == 0 || args.width == 0) return cudaSuccess;
  with_type(args.scalar, [&](auto zero) {
    using T = decltype(zero);
    const bool vectorized = aligned16<T>(args.x, args.width) && aligned16<T>(args.y) && aligned16<T>(args.residual);
    with_pack<T>(vectorized, [&](auto pack) {
      unpermute<T, decltype(pack)::value><<<blocks_for(args.tokens), block_threads, 0, stream>>>(args);
    });
  });
  return cudaGetLastError();
}

}  // namespace tera::cuda::kernels
