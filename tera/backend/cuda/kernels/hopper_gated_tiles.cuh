#pragma once
// The device code of hopper_gated_gemm.cu.
//
// A cluster of two blocks goes through tiles of 256 rows, the second block has the lower half. In a block
//
//   one thread             has the copy engine fill a ring of stages, each of 64 terms of the sums; of the columns'
//                          operand each block fetches half, for both
//   two warpgroups         multiply, 64 rows by 256 columns each, and leave the rounded sums in shared memory, a piece
//   three warps            finish the piece while the next tile's sums are made: activation, or its gradient
//
//   ring      | 1 2 3 ...            | 1 2 3 ...            |
//   multiply  |  tile 0 ........ > p |  tile 1 ........ > p |
//   finish    |                      | tile 0 ......        | tile 1 ......
//
// So nothing of what an activation costs, its memory and its exponentials, is waited for, unless a tile's sums are made
// faster than a piece is finished.
//
// Forward, a tile has 128 columns of gates and the same of ups: the sums of a thread are pairs of both. The copy engine
// brings the piece out, the three warps read it too and write act. Backward, the piece is the gradient of act, which
// goes nowhere else.

#include "tera/backend/cuda/kernels/activation_curves.cuh"
#include "tera/backend/cuda/kernels/hopper_gated_gemm.cuh"
#include "tera/backend/cuda/kernels/hopper_products.cuh"

namespace tera::cuda::kernels::gated {

using hopper::blocks_of_cluster, hopper::box_bytes, hopper::box_columns, hopper::depth, hopper::stage_alignment,
    hopper::warpgroup;

constexpr int threads = 3 * warpgroup, finishing_warps = 3;
constexpr int part_rows = 64, block_rows = 2 * part_rows;
constexpr int tile_rows = blocks_of_cluster * block_rows, tile_columns = 256;
constexpr int unit_rows = 16, unit_bytes = unit_rows * 128;  // of a box, finished at once by a warp
constexpr int band_tiles = 8;                                // rows of tiles that are worked on together

// Of shared memory.
struct Memory {
  static constexpr int left_bytes = block_rows * depth * 2, right_bytes = tile_columns * depth * 2;
  static constexpr int stage_bytes = left_bytes + right_bytes, stages = 3;
  static constexpr int piece_bytes = part_rows * tile_columns * 2, pieces = stages * stage_bytes;
  static constexpr int leaving = pieces + 2 * piece_bytes;  // units of warps that finish
  static constexpr int filled = leaving + finishing_warps * 2 * unit_bytes, emptied = filled + stages * 8;
  static constexpr int made = emptied + stages * 8, finished = made + 2 * 8;  // pieces
  static constexpr int bytes = finished + 2 * 8;
};

struct Plan {
  CUtensorMap a, b;
  CUtensorMap x_boxes;  // forward: as [2,R,F]
  const void* x;        // backward
  CUtensorMap result;   // act, or dx as [2,R,F]; in boxes of units
  int rows, width, depth_blocks, row_tiles, column_tiles;
};

// A tile: its first row, and its number among the columns of tiles.
struct Place {
  int row, column;
};

// Bands of 2048 rows, down a column of the band first: what runs at the same time shares rows of one operand and
// columns of the other.
__device__ inline Place place_of(const Plan& plan, int number) {
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
  hopper::RingPlace<Memory::stages> at;
  for (int number = first_tile(); number < tiles_of(plan); number += tile_step()) {
    const Place tile = place_of(plan, number);
    for (int block = 0; block < plan.depth_blocks; ++block) {
      const std::uint32_t stage = memory + static_cast<std::uint32_t>(at.stage * Memory::stage_bytes);
      const std::uint32_t filled = memory + static_cast<std::uint32_t>(Memory::filled + at.stage * 8);
      const std::uint32_t right =
          stage + Memory::left_bytes + static_cast<std::uint32_t>(rank * Memory::right_bytes / 2);
      hopper::wait_for_phase(memory + static_cast<std::uint32_t>(Memory::emptied + at.stage * 8), at.parity ^ 1);
      hopper::arrive_expecting(filled, Memory::stage_bytes);
      hopper::copy_box(stage, plan.a, {block * depth, tile.row + rank * block_rows, 0}, filled);
      if constexpr (backward) {
        const int column = tile.column * tile_columns + rank * tile_columns / 2;
        hopper::copy_box_to(0b11, right, plan.b, {column, block * depth, 0}, filled);
        hopper::copy_box_to(0b11, right + box_bytes, plan.b, {column + box_columns, block * depth, 0}, filled);
      } else {  // gates by the first block, ups by the second
        hopper::copy_box_to(0b11, right, plan.b, {block * depth, tile.column * tile_columns / 2, rank}, filled);
      }
      at.next();
    }
  }
}

// One of the two warpgroups that multiply.
template <class T, bool backward>
class Multiplier {
  static constexpr int sums = tile_columns / 2;  // of a thread: 64 rows by 128 threads
  static constexpr int right_along_n = backward ? 1 : 0;

 public:
  __device__ Multiplier(const Plan& plan, unsigned char* memory)
      : plan_(plan), memory_(hopper::shared_address(memory)), thread_(static_cast<int>(threadIdx.x) - warpgroup) {}

  __device__ void run() {
    float sum[sums] = {};
    std::uint32_t parity = 1;
    for (int number = first_tile(); number < tiles_of(plan_); number += tile_step()) {
      multiply(sum);
      hopper::wait_for_phase(barrier(Memory::finished), parity);
      hopper::write_boxes<T, tile_columns>(
          memory_ + static_cast<std::uint32_t>(Memory::pieces + part() * Memory::piece_bytes), sum);
      hopper::publish_to_engines();
      hopper::arrive(barrier(Memory::made));
      parity ^= 1;
    }
  }

 private:
  __device__ int part() const { return thread_ / warpgroup; }
  __device__ std::uint32_t barrier(int first) const { return memory_ + static_cast<std::uint32_t>(first + part() * 8); }

  __device__ void multiply(float (&sum)[sums]) {
    const auto part_of_left = static_cast<std::uint32_t>(part() * box_bytes);
    int before = 0;
    hopper::hold(sum);
    for (int block = 0; block < plan_.depth_blocks; ++block) {
      const std::uint32_t stage = memory_ + static_cast<std::uint32_t>(at_.stage * Memory::stage_bytes);
      hopper::wait_for_phase(memory_ + static_cast<std::uint32_t>(Memory::filled + at_.stage * 8), at_.parity);
      hopper::start_products<T, 0, right_along_n>(sum, stage + part_of_left, stage + Memory::left_bytes, block == 0);
      hopper::wait_for_products<1>();
      if (block > 0) release(before);
      before = at_.stage;
      at_.next();
    }
    hopper::wait_for_products<0>();
    hopper::hold(sum);
    release(before);
  }

  __device__ void release(int stage) const {
    hopper::release_stage(memory_ + static_cast<std::uint32_t>(Memory::emptied + stage * 8));
  }

  const Plan& plan_;
  std::uint32_t memory_;
  int thread_;  // among those of both warpgroups
  hopper::RingPlace<Memory::stages> at_;
};

// 16 bytes that are used once, or none, without a branch.
__device__ inline void load_if(bool there, const void* from, uint4& to) {
  asm volatile(
      "{\n.reg .pred there;\nsetp.ne.b32 there, %5, 0;\n"
      "@there ld.global.cs.v4.b32 {%0, %1, %2, %3}, [%4];\n}"
      : "+r"(to.x), "+r"(to.y), "+r"(to.z), "+r"(to.w)
      : "l"(__cvta_generic_to_global(from)), "r"(static_cast<int>(there))
      : "memory");
}
// As floats, made here and not before: work on what a load has not brought yet would wait for it.
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

// One of the warps that finish pieces. A piece has units of 16 rows of a box, which the warps take in turn, piece by
// piece and tile by tile; a thread has 16 bytes of every fourth row of a unit. Results leave by the copy engine, which
// also leaves out what is outside: act and dup from a place of the warp's own, dgate from the piece itself, where it
// takes the place of dact.
template <class T, bool backward>
class Finisher {
  static constexpr int chunk = 8, chunks = 4;                                 // elements in 16 bytes; rows of a thread
  static constexpr int columns = backward ? tile_columns : tile_columns / 2;  // of act in a piece
  static constexpr int units_of_box = part_rows / unit_rows, units = columns / box_columns * units_of_box;

  // Where a warp is in the order of units.
  struct Unit {
    int number = 0, tile = 0, part = 0;
    Place piece = {};  // its first row and column
  };
  struct X {
    uint4 gates[chunks], ups[chunks];
  };

 public:
  __device__ Finisher(const Plan& plan, unsigned char* memory, int warp)
      : plan_(plan), memory_(hopper::shared_address(memory)), lane_(static_cast<int>(threadIdx.x) % 32), warp_(warp) {
    next_.number = warp;
    next_.tile = first_tile();
    enter_piece(next_);
  }

  // Two by turns: what comes next is fetched before what is there is used.
  __device__ void run() {
    X even = {}, odd = {};
    fetch(even);
    while (finish_unit(even, odd) && finish_unit(odd, even)) {
    }
    hopper::wait_for_copies_out();
  }

 private:
  __device__ bool valid(const Unit& unit) const { return unit.tile < tiles_of(plan_); }

  __device__ void enter_piece(Unit& unit) const {
    if (!valid(unit)) return;
    const Place tile = place_of(plan_, unit.tile);
    unit.piece = {tile.row + static_cast<int>(hopper::rank_in_cluster()) * block_rows + unit.part * part_rows,
                  tile.column * columns};
  }

  __device__ void step(Unit& unit) const {
    unit.number += finishing_warps;
    if (unit.number < units) return;
    unit.number -= units;
    unit.part ^= 1;
    if (unit.part == 0) unit.tile += tile_step();
    enter_piece(unit);
  }

  // Of a unit in the matrices.
  __device__ static Place place(const Unit& unit) {
    const auto number = static_cast<unsigned>(unit.number);
    return {unit.piece.row + static_cast<int>(number % units_of_box) * unit_rows,
            unit.piece.column + static_cast<int>(number / units_of_box) * box_columns};
  }

  __device__ void fetch(X& to) const {
    if (!backward || !valid(next_)) return;
    const Place first = place(next_);
    const int row = first.row + lane_ / 8, column = first.column + lane_ % 8 * chunk;
    const int rows = column < plan_.width ? plan_.rows - row : 0;  // inside of the matrix
    const T* x = static_cast<const T*>(plan_.x) + std::int64_t{row} * 2 * plan_.width + column;
#pragma unroll
    for (int i = 0; i < chunks; ++i, x += std::int64_t{4 * 2} * plan_.width) {
      load_if(i * 4 < rows, x, to.gates[i]);
      load_if(i * 4 < rows, x + plan_.width, to.ups[i]);
    }
  }

  // Finishes the unit whose x was fetched to `here`; false at the end.
  __device__ bool finish_unit(const X& here, X& after) {
    if (!valid(next_)) return false;
    const Unit unit = next_;
    step(next_);
    fetch(after);
    const auto part = static_cast<std::uint32_t>(unit.part);
    const std::uint32_t piece = memory_ + Memory::pieces + part * Memory::piece_bytes;
    const std::uint32_t sums = piece + static_cast<std::uint32_t>(unit.number * unit_bytes), own = own_place();
    const bool first = unit.number < finishing_warps, last = unit.number + finishing_warps >= units;
    if (first) {
      hopper::wait_for_phase(memory_ + Memory::made + part * 8, parity_);
      if (!backward && warp_ == 0 && lane_ == 0) send_piece(piece, unit.piece);
    }
    if (lane_ == 0) hopper::wait_for_reads_of_copies_out<1>();  // the unit before the last had the same place
    __syncwarp();
    compute(here, sums, own);
    hopper::publish_to_engines();
    __syncwarp();
    if (lane_ == 0) send_unit(place(unit), sums, own);
    if (last && lane_ == 0) {
      hopper::wait_for_reads_of_copies_out<0>();
      hopper::arrive(memory_ + Memory::finished + part * 8);
    }
    if (last) parity_ ^= part;
    return true;
  }

  // Two places by turns for what leaves.
  __device__ std::uint32_t own_place() {
    turn_ ^= 1;
    return memory_ + static_cast<std::uint32_t>(Memory::leaving + (warp_ * 2 + turn_) * unit_bytes);
  }

  __device__ void send_piece(std::uint32_t piece, Place at) const {
#pragma unroll
    for (int box = 0; box < 4; ++box, piece += box_bytes)
      hopper::copy_box_out(plan_.x_boxes, {at.column + box % 2 * box_columns, at.row, box / 2}, piece);
    hopper::commit_copies_out();
  }

  __device__ void send_unit(Place at, std::uint32_t sums, std::uint32_t own) const {
    if constexpr (backward) hopper::copy_box_out(plan_.result, {at.column, at.row, 0}, sums);
    hopper::copy_box_out(plan_.result, {at.column, at.row, backward ? 1 : 0}, own);
    hopper::commit_copies_out();
  }

  // Units lie in shared memory as the copy engine lays them down: four rows on, its order is turned by four chunks.
  __device__ void compute(const X& x, std::uint32_t sums, std::uint32_t own) const {
    const int row = lane_ / 8;
    const auto start = static_cast<std::uint32_t>(hopper::place_in_boxes(row, lane_ % 8));
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
        hopper::store_shared(own + here, packed_words<T>(up));
      } else {
        unpack_here<T>(hopper::load_shared(sums + here), gate);
        unpack_here<T>(hopper::load_shared(sums + here + 2 * box_bytes), up);
#pragma unroll
        for (int j = 0; j < chunk; ++j) gate[j] = Silu::at(gate[j]).value * up[j];
        hopper::store_shared(own + here, packed_words<T>(gate));
      }
    }
  }

  const Plan& plan_;
  std::uint32_t memory_;
  int lane_, warp_;  // warp: among those that finish
  Unit next_;
  int turn_ = 0;
  std::uint32_t parity_ = 0;
};

template <class T, bool backward>
__global__ void __launch_bounds__(threads, 1) multiply_gated(const __grid_constant__ Plan plan) {
  extern __shared__ unsigned char unaligned[];
  const std::uint32_t begin = hopper::shared_address(unaligned);
  unsigned char* const memory = unaligned + (-begin & (stage_alignment - 1));
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    const std::uint32_t address = hopper::shared_address(memory);
    for (int stage = 0; stage < Memory::stages; ++stage) {
      hopper::init_barrier(address + static_cast<std::uint32_t>(Memory::filled + stage * 8), 1);
      hopper::init_barrier(address + static_cast<std::uint32_t>(Memory::emptied + stage * 8),
                           hopper::consumer_warps * blocks_of_cluster);
    }
    for (int part = 0; part < 2; ++part) {
      hopper::init_barrier(address + static_cast<std::uint32_t>(Memory::made + part * 8), warpgroup);
      hopper::init_barrier(address + static_cast<std::uint32_t>(Memory::finished + part * 8), finishing_warps);
    }
    hopper::publish_barriers();
  }
  __syncthreads();
  hopper::sync_cluster();
  // Registers: 120 + 2 x 192 are the three times 168 that the block begins with.
  if (thread < warpgroup) {
    hopper::shrink_registers<120>();
    if (thread == 0) fetch<backward>(plan, hopper::shared_address(memory));
    if (thread >= 32) Finisher<T, backward>(plan, memory, thread / 32 - 1).run();
  } else {
    hopper::grow_registers<192>();
    Multiplier<T, backward>(plan, memory).run();
  }
  __syncwarp();
  hopper::sync_cluster();  // the other block may still write to this one's memory
}

}  // namespace tera::cuda::kernels::gated
