#pragma once
// What the warp-specialised wgmma GEMMs share: thread block clusters of two, whose first warpgroup is the producer
// (TMA) and whose two others are consumers (wgmma, 64 rows each) of a pipeline of stages of 64 terms.

#include "tera/backend/cuda/kernels/hopper/hopper.cuh"
#include "tera/backend/cuda/kernels/types.cuh"

namespace tera::cuda::kernels::hopper {

constexpr int warpgroup = 128, consumer_warps = 8, blocks_of_cluster = 2;
constexpr int tile_k = 64;                             // terms of a sum in a stage: 128 bytes
constexpr int box_columns = 64, box_bytes = 64 * 128;  // TMA box, elements of 16 bits: 64 rows of 128 bytes
constexpr std::size_t stage_alignment = 1024;          // eight rows, after which TMA's swizzle repeats

// The byte offset of 16 bytes of a row in boxes side by side. TMA's 128-byte swizzle avoids bank conflicts.
__device__ inline int swizzled_offset(int row, int chunk) {
  return chunk / 8 * box_bytes + row * 128 + ((chunk ^ row) & 7) * 16;
}

// Issues the wgmma of a stage: sum [64,n] (+)= left [64,tile_k] right [tile_k,n]; the latter two at these addresses.
// Operands are K-major, or left M-major and right N-major, in boxes.
template <class T, int left_along_m, int right_along_n, int count>
__device__ inline void wgmma_tile(float (&sum)[count], std::uint32_t left_at, std::uint32_t right_at, bool first) {
  // From one 16 terms to the next, in descriptor units of 16 bytes: along a row, or 16 rows on.
  constexpr std::uint64_t left_step = left_along_m ? 16 * 128 / 16 : 2, right_step = right_along_n ? 16 * 128 / 16 : 2;
  const std::uint64_t left = matrix_descriptor(left_at, left_along_m ? box_bytes : 16);
  const std::uint64_t right = matrix_descriptor(right_at, right_along_n ? box_bytes : 16);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < tile_k / 16; ++step)
    wgmma<T, left_along_m, right_along_n>(sum, left + step * left_step, right + step * right_step, step > 0 || !first);
  wgmma_commit();
}

// Signals both blocks of the cluster, whose producers write to this stage, that a warp has read it; by all its threads.
__device__ inline void release_stage(std::uint32_t emptied) {
  const std::uint32_t rank = threadIdx.x % 32;
  if (rank < blocks_of_cluster) mbarrier_arrive_cluster(emptied, rank);
}

// The epilogue's stmatrix: stores rounded sums of 64 rows to swizzled boxes that begin at this address, by all threads
// of a warpgroup, twice eight columns of 16 rows at once. The address is computed anew each time (the asm hides that it
// never changes): kept from tile to tile it would take registers, of which there are none left.
template <class T, int columns>
__device__ inline void store_swizzled(std::uint32_t to, const float* sum) {
  const int thread = static_cast<int>(threadIdx.x) % warpgroup, lane = thread % 32, row = thread / 32 * 16 + lane % 16;
  std::uint32_t start = to + static_cast<std::uint32_t>(swizzled_offset(row, lane / 16));
  asm volatile("" : "+r"(start));
#pragma unroll
  for (int eight = 0; eight < columns / 8; eight += 2) {
    std::uint32_t two[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* const pair = sum + eight * 4 + i * 2;
      const Pack<T, 2> packed{from_float<T>(pair[0]), from_float<T>(pair[1])};
      two[i] = *reinterpret_cast<const std::uint32_t*>(&packed);
    }
    stmatrix_x4((start ^ eight % 8 * 16u) + static_cast<std::uint32_t>(eight / 8 * box_bytes), two);
  }
}

}  // namespace tera::cuda::kernels::hopper
