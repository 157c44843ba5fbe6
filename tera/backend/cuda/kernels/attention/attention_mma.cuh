#pragma once
// Flash attention's tiles on tensor cores (mma.sync), for 16-bit types with fp32 sums. Probabilities and their
// gradients are rounded to 16 bits before they are multiplied, as cuDNN does.
//
// A block has four warps; each owns 16 of the 64 rows whose results the block computes ("fixed"), and goes over tiles
// of 64 rows of the other side ("moving"). Accumulators have the layout of mma.m16n8k16 over a warp: of a run of eight
// columns a thread holds columns lane % 4 * 2 and the next, in row lane / 4 and in row lane / 4 + 8.

#include "tera/backend/cuda/kernels/attention/attention_tile.cuh"
#include "tera/backend/cuda/kernels/ptx.cuh"

namespace tera::cuda::kernels {

constexpr int mma_threads = 128, mma_rows = 64;
constexpr float log2_e = 1.44269504088896340736f, ln_2 = 0.69314718055994530942f;

template <int padded>  // head size rounded up to 64 or 128
struct MmaTile {
  static constexpr int stride = padded + 8;  // 16 bytes more: eight rows lie in different banks
  static constexpr int size = mma_rows * stride;
  static constexpr int runs = padded / 8;  // runs of eight channels
};

using MmaScores = float[mma_rows / 8][4];  // 16 rows by 64 columns, of a warp
template <int padded>
using MmaSums = float[MmaTile<padded>::runs][4];  // 16 rows by all channels

__device__ inline std::uint32_t pair_of(float low, float high, __nv_bfloat16) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}
__device__ inline std::uint32_t pair_of(float low, float high, __half) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

template <int count>
__device__ inline void clear(float (&sums)[count][4]) {
#pragma unroll
  for (int i = 0; i < count; ++i)
#pragma unroll
    for (int c = 0; c < 4; ++c) sums[i][c] = 0;
}

// result = the 16 rows of this warp in tile a times the 64 rows of tile b, over the channels.
template <int padded, class T>
__device__ inline void multiply_tiles(const T* a, const T* b, MmaScores& result) {
  using Tile = MmaTile<padded>;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const T* const a_row = a + (warp * 16 + lane % 16) * Tile::stride + lane / 16 * 8;
  const T* const b_row = b + (lane % 8 + lane / 16 * 8) * Tile::stride + lane / 8 % 2 * 8;
  clear(result);
#pragma unroll
  for (int d = 0; d < padded; d += 16) {
    std::uint32_t x[4];
    ptx::ldmatrix_x4(x, a_row + d);
#pragma unroll
    for (int n = 0; n < mma_rows / 16; ++n) {
      std::uint32_t y[4];
      ptx::ldmatrix_x4(y, b_row + n * 16 * Tile::stride + d);
      ptx::mma_m16n8k16(result[2 * n], x, y[0], y[1], T{});
      ptx::mma_m16n8k16(result[2 * n + 1], x, y[2], y[3], T{});
    }
  }
}

// sums += scores * tile: 16 x 64 by 64 x padded.
template <int padded, class T>
__device__ inline void add_matmul(MmaSums<padded>& sums, const MmaScores& scores, const T* tile) {
  using Tile = MmaTile<padded>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const T* const row = tile + (lane % 8 + lane / 8 % 2 * 8) * Tile::stride + lane / 16 * 8;
#pragma unroll
  for (int n = 0; n < mma_rows / 16; ++n) {
    const std::uint32_t x[4] = {pair_of(scores[2 * n][0], scores[2 * n][1], T{}),
                                pair_of(scores[2 * n][2], scores[2 * n][3], T{}),
                                pair_of(scores[2 * n + 1][0], scores[2 * n + 1][1], T{}),
                                pair_of(scores[2 * n + 1][2], scores[2 * n + 1][3], T{})};
#pragma unroll
    for (int d = 0; d < padded / 16; ++d) {
      std::uint32_t y[4];
      ptx::ldmatrix_x4_trans(y, row + n * 16 * Tile::stride + d * 16);
      ptx::mma_m16n8k16(sums[2 * d], x, y[0], y[1], T{});
      ptx::mma_m16n8k16(sums[2 * d + 1], x, y[2], y[3], T{});
    }
  }
}

// Starts a cp.async of rows [first, first + 64) of one head; rows from `count` on and channels from D on become zero.
template <int padded, class T>
__device__ inline void start_tile(T* tile, const T* data, std::int64_t stride, int first, int count, int D) {
  constexpr int packs = padded / 8;
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < mma_rows * packs; i += mma_threads) {
    const int row = i / packs, d = i % packs * 8;
    const bool there = first + row < count && d < D;
    const T* const from = there ? data + std::int64_t{first + row} * stride + d : data;
    ptx::cp_async_16_or_zeros(tile + row * MmaTile<padded>::stride + d, from, there);
  }
}

// Stores rows first + (this warp's 16) below `count` of one head; row lane / 4 times upper, row lane / 4 + 8 times
// lower.
template <int padded, class T>
__device__ inline void store_sums(const MmaSums<padded>& sums, T* data, std::int64_t stride, int first, int count,
                                  int D, float upper, float lower) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int row = first + warp * 16 + lane / 4;
  T* const to = data + std::int64_t{row} * stride + lane % 4 * 2;
#pragma unroll
  for (int n = 0; n < MmaTile<padded>::runs; ++n) {
    if (n * 8 >= D) continue;
    if (row < count)
      *reinterpret_cast<std::uint32_t*>(to + n * 8) = pair_of(sums[n][0] * upper, sums[n][1] * upper, T{});
    if (row + 8 < count)
      *reinterpret_cast<std::uint32_t*>(to + 8 * stride + n * 8) = pair_of(sums[n][2] * lower, sums[n][3] * lower, T{});
  }
}

// Reductions over the four threads that share a row.
__device__ inline float quad_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}
__device__ inline float quad_sum(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, 1);
  return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

// Whether every fixed row sees all of the 64 moving rows from first on. Ranges grow with the row; rows that are not
// there see nothing, but what is computed for them goes nowhere.
__device__ inline bool all_seen(const AttentionRange* ranges, int last_row, int first) {
  return first >= ranges[last_row].begin && first + mma_rows <= ranges[0].end;
}

}  // namespace tera::cuda::kernels
