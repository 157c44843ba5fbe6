#pragma once
// The device code of hopper_gated_gemm.cu: a persistent, warp-specialised GEMM whose epilogue overlaps the next tile.
//
// A thread block cluster of two goes through tiles of 256 rows, the second block has the lower half. In a block
//
//   one producer thread    fills a pipeline of stages by TMA, each of 64 terms of the sums; of the columns' operand
//   each
//                          block loads half and multicasts it to both
//   two warpgroups         (consumers) multiply by wgmma, 64 rows by 256 columns each, and leave the rounded sums in
//                          shared memory, a piece
//   three epilogue warps   work on the piece while the next tile's sums are made: activation, or its gradient
//
//   producer  | 1 2 3 ...            | 1 2 3 ...            |
//   consumers |  tile 0 ........ > p |  tile 1 ........ > p |
//   epilogue  |                      | tile 0 ......        | tile 1 ......
//
// So nothing of what an activation costs, its memory and its exponentials, is waited for, unless a tile's sums are made
// faster than the epilogue is done with a piece.
//
// Forward, a tile has 128 columns of gates and 128 of ups: the sums of a thread are pairs of both. TMA stores the
// piece, the three warps read it too and write act. Backward, the piece is the gradient of act, which goes nowhere
// else.

#include "tera/backend/cuda/kernels/activation_curves.cuh"
#include "tera/backend/cuda/kernels/hopper/hopper_gated_gemm.cuh"
#include "tera/backend/cuda/kernels/hopper/hopper_wgmma.cuh"

namespace tera::cuda::kernels::gated {

using hopper::blocks_of_cluster, hopper::box_bytes, hopper::box_columns, hopper::tile_k, hopper::stage_alignment,
    hopper::warpgroup;

constexpr int threads = 3 * warpgroup, epilogue_warps = 3;
constexpr int part_rows = 64, block_rows = 2 * part_rows;
constexpr int tile_rows = blocks_of_cluster * block_rows, tile_columns = 256;
constexpr int unit_rows = 16, unit_bytes = unit_rows * 128;  // part of a box, for one warp at a time
constexpr int band_tiles = 8;                                // rows of tiles that are worked on together

// Offsets in shared memory.
struct Memory {
  static constexpr int left_bytes = block_rows * tile_k * 2, right_bytes = tile_columns * tile_k * 2;
  static constexpr int stage_bytes = left_bytes + right_bytes, stages = 3;
  static constexpr int piece_bytes = part_rows * tile_columns * 2, pieces = stages * stage_bytes;
  static constexpr int staging = pieces + 2 * piece_bytes;  // units that epilogue warps store
  static constexpr int filled = staging + epilogue_warps * 2 * unit_bytes, emptied = filled + stages * 8;
  static constexpr int piece_filled = emptied + stages * 8, piece_emptied = piece_filled + 2 * 8;  // pieces
  static constexpr int bytes = piece_emptied + 2 * 8;
};

struct Plan {
  CUtensorMap a, b;
  CUtensorMap x_map;   // forward: x as [2,R,F]
  const void* x;       // backward
  CUtensorMap result;  // act, or dx as [2,R,F]; in boxes of units
  int rows, width, k_tiles, row_tiles, column_tiles;
};

// A tile: its first row, and its number among the columns of tiles.
struct TileOrigin {
  int row, column;
};

// The tile order is rasterised for L2: bands of 2048 rows, down a column of the band first, so that what runs at the
// same time shares rows of one operand and columns of the other.
__device__ inline TileOrigin tile_origin(const Plan& plan, int number) {
  const int band = number / (band_tiles * plan.column_tiles), top = band * band_tiles;
  const int height = min(band_tiles, plan.row_tiles - top), inside = number - top * plan.column_tiles;
  const int column = inside / height;
  return {(top + inside - column * height) * tile_rows, column};
}

__device__ inline int first_tile() { return static_cast<int>(blockIdx.x) / blocks_of_cluster; }
__device__ inline int tile_step() { return static_cast<int>(gridDim.x) / blocks_of_cluster; }
__device__ inline int tiles_of(const Plan& plan) { return plan.row_tiles * plan.column_tiles; }

template <bool backward>
__device__ void fetch(const Plan& plan, std::uint32_t memory) {
  const int rank = static_cast<int>(hopper::rank_in_cluster());
  hopper::PipelineState<Memory::stages> at;
  for (int number = first_tile(); number < tiles_of(plan); number += tile_step()) {
    const TileOrigin tile = tile_origin(plan, number);
    for (int block = 0; block < plan.k_tiles; ++block) {
      const std::uint32_t stage = memory + static_cast<std::uint32_t>(at.stage * Memory::stage_bytes);
      const std::uint32_t filled = memory + static_cast<std::uint32_t>(Memory::filled + at.stage * 8);
      const std::uint32_t right =
          stage + Memory::left_bytes + static_cast<std::uint32_t>(rank * Memory::right_bytes / 2);
      hopper::mbarrier_wait(memory + static_cast<std::uint32_t>(Memory::emptied + at.stage * 8), at.parity ^ 1);
      hopper::mbarrier_arrive_expect_tx(filled, Memory::stage_bytes);
      hopper::tma_load(stage, plan.a, {block * tile_k, tile.row + rank * block_rows, 0}, filled);
      if constexpr (backward) {
        const int column = tile.column * tile_columns + rank * tile_columns / 2;
        hopper::tma_load_multicast(0b11, right, plan.b, {column, block * tile_k, 0}, filled);
        hopper::tma_load_multicast(0b11, right + box_bytes, plan.b, {column + box_columns, block * tile_k, 0}, filled);
      } else {  // gates by the first block, ups by the second
        hopper::tma_load_multicast(0b11, right, plan.b, {block * tile_k, tile.column * tile_columns / 2, rank}, filled);
      }
      at.next();
    }
  }
}

// One of the two consumer warpgroups.
template <class T, bool backward>
class Consumer {
  static constexpr int sums = tile_columns / 2;  // accumulators per thread: 64 rows by 128 threads
  static constexpr int right_along_n = backward ? 1 : 0;

 public:
  __device__ Consumer(const Plan& plan, unsigned char* memory)
      : plan_(plan), memory_(hopper::shared_address(memory)), thread_(static_cast<int>(threadIdx.x) - warpgroup) {}

  __device__ void run() {
    float sum[sums] = {};
    std::uint32_t parity = 1;
    for (int number = first_tile(); number < tiles_of(plan_); number += tile_step()) {
      multiply(sum);
      hopper::mbarrier_wait(barrier(Memory::piece_emptied), parity);
      hopper::store_swizzled<T, tile_columns>(
          memory_ + static_cast<std::uint32_t>(Memory::pieces + part() * Memory::piece_bytes), sum);
      hopper::fence_proxy_async_shared();
      hopper::mbarrier_arrive(barrier(Memory::piece_filled));
      parity ^= 1;
    }
  }

 private:
  __device__ int part() const { return thread_ / warpgroup; }
  __device__ std::uint32_t barrier(int first) const { return memory_ + static_cast<std::uint32_t>(first + part() * 8); }

  __device__ void multiply(float (&sum)[sums]) {
    const auto part_of_left = static_cast<std::uint32_t>(part() * box_bytes);
    int before = 0;
    hopper::wgmma_fence_registers(sum);
    for (int block = 0; block < plan_.k_tiles; ++block) {
      const std::uint32_t stage = memory_ + static_cast<std::uint32_t>(at_.stage * Memory::stage_bytes);
      hopper::mbarrier_wait(memory_ + static_cast<std::uint32_t>(Memory::filled + at_.stage * 8), at_.parity);
      hopper::wgmma_tile<T, 0, right_along_n>(sum, stage + part_of_left, stage + Memory::left_bytes, block == 0);
      hopper::wgmma_wait<1>();
      if (block > 0) release(before);
      before = at_.stage;
      at_.next();
    }
    hopper::wgmma_wait<0>();
    hopper::wgmma_fence_registers(sum);
    release(before);
  }

  __device__ void release(int stage) const {
    hopper::release_stage(memory_ + static_cast<std::uint32_t>(Memory::emptied + stage * 8));
  }

  const Plan& plan_;
  std::uint32_t memory_;
  int thread_;  // among those of both warpgroups
  hopper::PipelineState<Memory::stages> at_;
};

// Loads 16 bytes that are used once, or none, without a branch.
__device__ inline void load_if(bool there, const void* from, uint4& to) {
  asm volatile(
      "{\n.reg .pred there;\nsetp.ne.b32 there, %5, 0;\n"
      "@there ld.global.cs.v4.b32 {%0, %1, %2, %3}, [%4];\n}"
      : "+r"(to.x), "+r"(to.y), "+r"(to.z), "+r"(to.w)
      : "l"(__cvta_generic_to_global(from)), "r"(static_cast<int>(there))
      : "memory");
}
// Unpacks to floats here and not before: work on what a load has not brought yet would wait for it.
template <class T>
__device__ inline void unpack_here(uint4 words, float (&out)[8]) {
  asm volatile("" : "+r"(words.x), "+r"(words.y), "+r"(words.z), "+r"(words.w));
  Pack<T, 8> pack;
  memcpy(&pack, &words, sizeof(pack));
  unpack(pack, out);
}
template <class T>
__device__ inline uint4 packed_words(const float (&in)[8]) {
  const Pack<T, 8> pack = packed<T>(in);
  uint4 words;
  memcpy(&words, &pack, sizeof(words));
  return words;
}

// One of the epilogue warps. A piece has units of 16 rows of a box, which the warps take in turn, piece by piece and
// tile by tile; a thread has 16 bytes of every fourth row of a unit. Results are stored by TMA, which also drops what
// is outside: act and dup from a staging buffer of the warp's, dgate from the piece itself, where it replaces dact.
template <class T, bool backward>
class Epilogue {
  static constexpr int chunk = 8, chunks = 4;                                 // elements in 16 bytes; rows of a thread
  static constexpr int columns = backward ? tile_columns : tile_columns / 2;  // columns of act in a piece
  static constexpr int units_of_box = part_rows / unit_rows, units = columns / box_columns * units_of_box;

  // Where a warp is in the order of units.
  struct Unit {
    int number = 0, tile = 0, part = 0;
    TileOrigin piece = {};  // its first row and column
  };
  struct X {
    uint4 gates[chunks], ups[chunks];
  };

 public:
  __device__ Epilogue(const Plan& plan, unsigned char* memory, int warp)
      : plan_(plan), memory_(hopper::shared_address(memory)), lane_(static_cast<int>(threadIdx.x) % 32), warp_(warp) {
    next_.number = warp;
    next_.tile = first_tile();
    enter_piece(next_);
  }

  // Double buffering: the next x is fetched before the current one is used.
  __device__ void run() {
    X even = {}, odd = {};
    fetch(even);
    while (process_unit(even, odd) && process_unit(odd, even)) {
    }
    hopper::bulk_wait_group();
  }

 private:
  __device__ bool valid(const Unit& unit) const { return unit.tile < tiles_of(plan_); }

  __device__ void enter_piece(Unit& unit) const {
    if (!valid(unit)) return;
    const TileOrigin tile = tile_origin(plan_, unit.tile);
    unit.piece = {tile.row + static_cast<int>(hopper::rank_in_cluster()) * block_rows + unit.part * part_rows,
                  tile.column * columns};
  }

  __device__ void step(Unit& unit) const {
    unit.number += epilogue_warps;
    if (unit.number < units) return;
    unit.number -= units;
    unit.part ^= 1;
    if (unit.part == 0) unit.tile += tile_step();
    enter_piece(unit);
  }

  // The first row and column of a unit in the matrices.
  __device__ static TileOrigin unit_origin(const Unit& unit) {
    const auto number = static_cast<unsigned>(unit.number);
    return {unit.piece.row + static_cast<int>(number % units_of_box) * unit_rows,
            unit.piece.column + static_cast<int>(number / units_of_box) * box_columns};
  }

  __device__ void fetch(X& to) const {
    if (!backward || !valid(next_)) return;
    const TileOrigin first = unit_origin(next_);
    const int row = first.row + lane_ / 8, column = first.column + lane_ % 8 * chunk;
    const int rows = column < plan_.width ? plan_.rows - row : 0;  // inside of the matrix
    const T* x = static_cast<const T*>(plan_.x) + std::int64_t{row} * 2 * plan_.width + column;
#pragma unroll
    for (int i = 0; i < chunks; ++i, x += std::int64_t{4 * 2} * plan_.width) {
      load_if(i * 4 < rows, x, to.gates[i]);
      load_if(i * 4 < rows, x + plan_.width, to.ups[i]);
    }
  }

  // Processes the unit whose x was fetched to `here`; false at the end.
  __device__ bool process_unit(const X& here, X& after) {
    if (!valid(next_)) return false;
    const Unit unit = next_;
    step(next_);
    fetch(after);
    const auto part = static_cast<std::uint32_t>(unit.part);
    const std::uint32_t piece = memory_ + Memory::pieces + part * Memory::piece_bytes;
    const std::uint32_t sums = piece + static_cast<std::uint32_t>(unit.number * unit_bytes), staging = next_staging();
    const bool first = unit.number < epilogue_warps, last = unit.number + epilogue_warps >= units;
    if (first) {
      hopper::mbarrier_wait(memory_ + Memory::piece_filled + part * 8, parity_);
      if (!backward && warp_ == 0 && lane_ == 0) store_piece(piece, unit.piece);
    }
    if (lane_ == 0) hopper::bulk_wait_group_read<1>();  // the unit before the last used the same staging buffer
    __syncwarp();
    compute(here, sums, staging);
    hopper::fence_proxy_async_shared();
    __syncwarp();
    if (lane_ == 0) store_unit(unit_origin(unit), sums, staging);
    if (last && lane_ == 0) {
      hopper::bulk_wait_group_read<0>();
      hopper::mbarrier_arrive(memory_ + Memory::piece_emptied + part * 8);
    }
    if (last) parity_ ^= part;
    return true;
  }

  // The warp's two staging buffers, alternating.
  __device__ std::uint32_t next_staging() {
    slot_ ^= 1;
    return memory_ + static_cast<std::uint32_t>(Memory::staging + (warp_ * 2 + slot_) * unit_bytes);
  }

  __device__ void store_piece(std::uint32_t piece, TileOrigin at) const {
#pragma unroll
    for (int box = 0; box < 4; ++box, piece += box_bytes)
      hopper::tma_store(plan_.x_map, {at.column + box % 2 * box_columns, at.row, box / 2}, piece);
    hopper::bulk_commit_group();
  }

  __device__ void store_unit(TileOrigin at, std::uint32_t sums, std::uint32_t staging) const {
    if constexpr (backward) hopper::tma_store(plan_.result, {at.column, at.row, 0}, sums);
    hopper::tma_store(plan_.result, {at.column, at.row, backward ? 1 : 0}, staging);
    hopper::bulk_commit_group();
  }

  // Units have TMA's swizzled layout in shared memory: four rows on, the swizzle is rotated by four chunks.
  __device__ void compute(const X& x, std::uint32_t sums, std::uint32_t staging) const {
    const int row = lane_ / 8;
    const auto start = static_cast<std::uint32_t>(hopper::swizzled_offset(row, lane_ % 8));
#pragma unroll
    for (int i = 0; i < chunks; ++i) {
      const std::uint32_t here = (start ^ i % 2 * 64u) + i * 512u;
      float gate[chunk], up[chunk];
      if constexpr (backward) {
        float grad[chunk];
        unpack_here<T>(x.gates[i], gate);
        unpack_here<T>(x.ups[i], up);
        unpack_here<T>(hopper::load_shared(sums + here), grad);
#pragma unroll
        for (int j = 0; j < chunk; ++j) {
          const Point point = Silu::at(gate[j]);
          gate[j] = grad[j] * (up[j] * point.slope);
          up[j] = grad[j] * point.value;
        }
        hopper::store_shared(sums + here, packed_words<T>(gate));
        hopper::store_shared(staging + here, packed_words<T>(up));
      } else {
        unpack_here<T>(hopper::load_shared(sums + here), gate);
        unpack_here<T>(hopper::load_shared(sums + here + 2 * box_bytes), up);
#pragma unroll
        for (int j = 0; j < chunk; ++j) gate[j] = Silu::at(gate[j]).value * up[j];
        hopper::store_shared(staging + here, packed_words<T>(gate));
      }
    }
  }

  const Plan& plan_;
  std::uint32_t memory_;
  int lane_, warp_;  // warp: among those of the epilogue
  Unit next_;
  int slot_ = 0;
  std::uint32_t parity_ = 0;
};

template <class T, bool backward>
__global__ void __launch_bounds__(threads, 1) gated_gemm_kernel(const __grid_constant__ Plan plan) {
  extern __shared__ unsigned char unaligned[];
  const std::uint32_t begin = hopper::shared_address(unaligned);
  unsigned char* const memory = unaligned + (-begin & (stage_alignment - 1));
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    const std::uint32_t address = hopper::shared_address(memory);
    for (int stage = 0; stage < Memory::stages; ++stage) {
      hopper::mbarrier_init(address + static_cast<std::uint32_t>(Memory::filled + stage * 8), 1);
      hopper::mbarrier_init(address + static_cast<std::uint32_t>(Memory::emptied + stage * 8),
                            hopper::consumer_warps * blocks_of_cluster);
    }
    for (int part = 0; part < 2; ++part) {
      hopper::mbarrier_init(address + static_cast<std::uint32_t>(Memory::piece_filled + part * 8), warpgroup);
      hopper::mbarrier_init(address + static_cast<std::uint32_t>(Memory::piece_emptied + part * 8), epilogue_warps);
    }
    hopper::fence_mbarrier_init();
  }
  __syncthreads();
  hopper::sync_cluster();
  // Registers: 120 + 2 x 192 are the three times 168 that the block begins with.
  if (thread < warpgroup) {
    hopper::setmaxnreg_dec<120>();
    if (thread == 0) fetch<backward>(plan, hopper::shared_address(memory));
    if (thread >= 32) Epilogue<T, backward>(plan, memory, thread / 32 - 1).run();
  } else {
    hopper::setmaxnreg_inc<192>();
    Consumer<T, backward>(plan, memory).run();
  }
  __syncwarp();
  hopper::sync_cluster();  // the other block may still write to this one's memory
}

}  // namespace tera::cuda::kernels::gated
