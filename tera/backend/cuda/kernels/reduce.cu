#include "tera/backend/cuda/kernels/reduce.cuh"

#include "tera/backend/cuda/kernels/pdl.cuh"
#include "tera/backend/cuda/kernels/rows.cuh"

namespace tera::cuda::kernels {
namespace {

constexpr int warp_size = 32;

// Column sums. A block takes warp_size packs of columns and every gridDim.y-th group of rows, one of them per warp: all
// blocks go through memory side by side.
constexpr int row_warps = 4, rows_at_once = 4;

template <class T, int N>
__device__ void add_pack(float (&sum)[N], const Pack<T, N>& pack) {
  float value[N];
  unpack(pack, value);
#pragma unroll
  for (int j = 0; j < N; ++j) sum[j] += value[j];
}

// Eight blocks per multiprocessor: without this launch bound the compiler saves registers and spreads the loads out.
template <class T, int N>
__global__ void __launch_bounds__(row_warps* warp_size, 8) sum_row_block(ColumnSum args) {
  pdl_trigger();
  __shared__ float sums[row_warps][warp_size * N];  // [warp, column of this block]
  const int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
  const std::int64_t first_column = static_cast<std::int64_t>(blockIdx.x) * warp_size * N;
  const std::int64_t column = first_column + lane * N;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.y) * row_warps;
  float sum[N] = {};
  if (column < args.width) {
    const T* x = static_cast<const T*>(args.x) + column;
    std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * row_warps + warp;
    for (; row + (rows_at_once - 1) * step < args.rows; row += rows_at_once * step) {
      Pack<T, N> pack[rows_at_once];
#pragma unroll
      for (int i = 0; i < rows_at_once; ++i) pack[i] = load<N>(x + (row + i * step) * args.stride);
#pragma unroll
      for (int i = 0; i < rows_at_once; ++i) add_pack(sum, pack[i]);
    }
    for (; row < args.rows; row += step) add_pack(sum, load<N>(x + row * args.stride));
  }
#pragma unroll
  for (int j = 0; j < N; ++j) sums[warp][lane * N + j] = sum[j];
  __syncthreads();
  for (int i = threadIdx.x; i < warp_size * N; i += row_warps * warp_size) {
    if (first_column + i >= args.width) continue;
    float total = 0;
#pragma unroll
    for (int w = 0; w < row_warps; ++w) total += sums[w][i];
    args.partial[blockIdx.y * args.width + first_column + i] = total;
  }
}

// Adds the partial rows to out: warp_size columns per block, every add_warps-th row per warp, then the warps in order.
constexpr int add_warps = 16;

__global__ void __launch_bounds__(add_warps* warp_size) add_partial_rows(ColumnSum args) {
  pdl_wait();
  __shared__ float sums[add_warps][warp_size];
  const int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * warp_size + lane;
  float sum = 0;
  if (column < args.width) {
#pragma unroll 4
    for (std::int64_t row = warp; row < args.blocks; row += add_warps) sum += args.partial[row * args.width + column];
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= args.width) return;
  float total = 0;
#pragma unroll
  for (int w = 0; w < add_warps; ++w) total += sums[w][lane];
  args.out[column] += total;
}

template <class T, int N>
void launch_row_blocks(const ColumnSum& args, cudaStream_t stream) {
  const std::int64_t columns_per_block = warp_size * N;
  const dim3 grid(static_cast<unsigned>((args.width + columns_per_block - 1) / columns_per_block),
                  static_cast<unsigned>(args.blocks));
  sum_row_block<T, N><<<grid, row_warps * warp_size, 0, stream>>>(args);
}

// Sums to one number. Few enough blocks to be on a large GPU all at once, each of few enough threads to give every one
// several loads in flight.
constexpr int sum_threads = 256;

// Loads four neighbours; memory that is not aligned for one access is read one by one, by the same threads, so that
// alignment does not change the order of the sum.
template <bool aligned>
__device__ float4 load_four(const float* from) {
  if constexpr (aligned) return *reinterpret_cast<const float4*>(from);
  return {from[0], from[1], from[2], from[3]};
}

template <bool squares>
__device__ double term(float x) {
  const double wide = x;
  return squares ? wide * wide : wide;
}

template <bool squares>
__device__ void add_four(double (&total)[4], const float4& x) {
  total[0] += term<squares>(x.x);
  total[1] += term<squares>(x.y);
  total[2] += term<squares>(x.z);
  total[3] += term<squares>(x.w);
}

__device__ void put_sum(const ScalarSum& args, double total) {
  *args.out = args.accumulate ? *args.out + total : total;
}

template <bool squares, bool aligned>
__global__ void __launch_bounds__(sum_threads, 4) sum_elements(ScalarSum args) {
  pdl_trigger();
  __shared__ double shared[warp_size];
  const std::int64_t fours = args.n / 4, stride = static_cast<std::int64_t>(gridDim.x) * sum_threads;
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * sum_threads + threadIdx.x;
  double total[4] = {};
  for (; i + 3 * stride < fours; i += 4 * stride) {
    float4 x[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) x[k] = load_four<aligned>(args.x + 4 * (i + k * stride));
#pragma unroll
    for (int k = 0; k < 4; ++k) add_four<squares>(total, x[k]);
  }
  for (; i < fours; i += stride) add_four<squares>(total, load_four<aligned>(args.x + 4 * i));
  const std::int64_t rest = 4 * fours + threadIdx.x;  // fewer than four elements, the first block's
  if (blockIdx.x == 0 && rest < args.n) total[0] += term<squares>(args.x[rest]);
  const double sum = block_sum((total[0] + total[1]) + (total[2] + total[3]), shared);
  if (threadIdx.x != 0) return;
  if (args.blocks == 1)
    put_sum(args, sum);
  else
    args.partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(sum_threads) add_block_sums(ScalarSum args) {
  pdl_wait();
  __shared__ double shared[warp_size];
  double total = 0;
  for (std::int64_t i = threadIdx.x; i < args.blocks; i += sum_threads) total += args.partial[i];
  total = block_sum(total, shared);
  if (threadIdx.x == 0) put_sum(args, total);
}

template <bool squares>
void launch_sum(const ScalarSum& args, cudaStream_t stream) {
  const auto grid = static_cast<unsigned>(args.blocks);
  if (aligned16<float>(args.x))
    sum_elements<squares, true><<<grid, sum_threads, 0, stream>>>(args);
  else
    sum_elements<squares, false><<<grid, sum_threads, 0, stream>>>(args);
}

}  // namespace

cudaError_t launch_column_sum(const ColumnSum& args, cudaStream_t stream) {
  if (args.rows == 0 || args.width == 0) return cudaSuccess;
  with_type(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    constexpr int pack = 16 / sizeof(T);
    if (aligned16<T>(args.x, args.stride) && args.width % pack == 0)
      launch_row_blocks<T, pack>(args, stream);
    else
      launch_row_blocks<T, 1>(args, stream);
  });
  if (const cudaError_t status = cudaGetLastError(); status != cudaSuccess) return status;
  return pdl_launch<add_partial_rows>(static_cast<unsigned>(divide_up(args.width, warp_size)), add_warps * warp_size,
                                      stream, args);
}

cudaError_t launch_scalar_sum(const ScalarSum& args, cudaStream_t stream) {
  if (args.squares)
    launch_sum<true>(args, stream);
  else
    launch_sum<false>(args, stream);
  if (const cudaError_t status = cudaGetLastError(); status != cudaSuccess || args.blocks == 1) return status;
  return pdl_launch<add_block_sums>(1, sum_threads, stream, args);
}

}  // namespace tera::cuda::kernels
