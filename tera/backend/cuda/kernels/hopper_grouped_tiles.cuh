#pragma once
// The device code of hopper_grouped_gemm.cu.
//
// A block of three warpgroups goes through tiles of the output, 128 rows high. One thread of the first warpgroup has
// the copy engine fill a ring of stages, each of 64 terms of the sums; the other two warpgroups multiply, 64 rows each.
// Two blocks of a cluster have neighbouring tiles of the same rows: each fetches half of these rows' operand for both.

#include "tera/backend/cuda/kernels/group_tiles.cuh"
#include "tera/backend/cuda/kernels/hopper.cuh"
#include "tera/backend/cuda/kernels/hopper_grouped_gemm.cuh"

namespace tera::cuda::kernels::grouped {

constexpr int warpgroup = 128, threads = 3 * warpgroup, consumer_warps = 8;
constexpr int tile_rows = 128, half_rows = tile_rows / 2;  // of out; a warpgroup multiplies half of them
constexpr int depth = 64;                                  // terms of a sum in a stage: 128 bytes
constexpr int box_columns = 64, box_bytes = 64 * depth * 2;
constexpr int left_bytes = 2 * box_bytes;
constexpr int most_groups = 512;
constexpr std::size_t stage_alignment = 1024;

// Results of 16 rows and 64 columns, on the way from registers to whole rows. The gap keeps banks apart.
constexpr int piece_columns = 64, piece_stride = piece_columns * 2 + 16, piece_bytes = 16 * piece_stride;

// Of shared memory, by the width of a tile.
template <int columns>
struct Layout {
  static constexpr int right_bytes = columns * depth * 2, stage_bytes = left_bytes + right_bytes;
  static constexpr int stages = columns == 256 ? 4 : 6;
  static constexpr int pieces = stages * stage_bytes;
  static constexpr int filled = pieces + consumer_warps * piece_bytes, emptied = filled + stages * 8;
  static constexpr int offsets = emptied + stages * 8;
  static constexpr int bytes = offsets + (most_groups + 1) * 4;
};

struct Plan {
  CUtensorMap a, b;
  void* out;
  const std::int32_t* offsets;
  GroupTileShape tiles;  // a column of them for each cluster
  int m, n, depth_blocks, cluster;
  bool out_f32;
};

// A place in the ring. parity is that of the phase in which the stage is filled.
template <int stages>
struct RingPlace {
  int stage = 0;
  std::uint32_t parity = 0;
  __device__ void next() {
    if (++stage < stages) return;
    stage = 0;
    parity ^= 1;
  }
};

template <GroupedForm form>
__device__ int depth_blocks_of(const Plan& plan, const GroupTile& tile) {
  return form == GroupedForm::weights ? (tile.end - tile.begin + depth - 1) / depth : plan.depth_blocks;
}

// What the copy engine fetches, in which order.
template <GroupedForm form, int columns>
class Producer {
  using Memory = Layout<columns>;

 public:
  __device__ Producer(const Plan& plan, unsigned char* memory)
      : plan_(plan),
        memory_(hopper::shared_address(memory)),
        offsets_(reinterpret_cast<const int*>(memory + Memory::offsets)),
        rank_(static_cast<int>(hopper::rank_in_cluster())) {}

  __device__ void run() {
    GroupTileWalk walk(offsets_, plan_.tiles);
    GroupTile tile;
    const int cluster = plan_.cluster, clusters = static_cast<int>(gridDim.x) / cluster;
    for (int number = static_cast<int>(blockIdx.x) / cluster; walk.find(number, tile); number += clusters) {
      const int column = (tile.column * cluster + rank_) * columns, blocks = depth_blocks_of<form>(plan_, tile);
      for (int block = 0; block < blocks; ++block) {
        const std::uint32_t stage = memory_ + static_cast<std::uint32_t>(at_.stage * Memory::stage_bytes);
        const std::uint32_t filled = memory_ + static_cast<std::uint32_t>(Memory::filled + at_.stage * 8);
        hopper::wait_for_phase(memory_ + static_cast<std::uint32_t>(Memory::emptied + at_.stage * 8), at_.parity ^ 1);
        hopper::arrive_expecting(filled, Memory::stage_bytes);
        fetch_left(tile, block * depth, stage, filled);
        fetch_right(tile, column, block * depth, stage + left_bytes, filled);
        if constexpr (form == GroupedForm::weights) prefetch_out(tile, column, block, blocks);
        at_.next();
      }
    }
  }

 private:
  __device__ void fetch_left(const GroupTile& tile, int k, std::uint32_t to, std::uint32_t filled) const {
    for (int half = 0; half < 2; ++half) {
      const int row = tile.row * tile_rows + half * half_rows;
      const hopper::BoxPlace at = form == GroupedForm::weights ? hopper::BoxPlace{row, tile.begin + k, 0}
                                                               : hopper::BoxPlace{k, tile.begin + row, 0};
      const std::uint32_t half_to = to + static_cast<std::uint32_t>(half * box_bytes);
      if (plan_.cluster == 1)
        hopper::copy_box(half_to, plan_.a, at, filled);
      else if (half == rank_)
        hopper::copy_box_to(0b11, half_to, plan_.a, at, filled);
    }
  }

  __device__ void fetch_right(const GroupTile& tile, int column, int k, std::uint32_t to, std::uint32_t filled) const {
    if constexpr (form == GroupedForm::transposed) {
      hopper::copy_box(to, plan_.b, {k, column, tile.group}, filled);
    } else {
      constexpr bool weights = form == GroupedForm::weights;
      for (int box = 0; box < columns / box_columns; ++box)
        hopper::copy_box(to + static_cast<std::uint32_t>(box * box_bytes), plan_.b,
                         {column + box * box_columns, weights ? tile.begin + k : k, weights ? 0 : tile.group}, filled);
    }
  }

  // What will be added to is brought nearer while the sums are made, some rows with every block.
  __device__ void prefetch_out(const GroupTile& tile, int column, int block, int blocks) const {
    const int per_block = (tile_rows + blocks - 1) / blocks, first = tile.row * tile_rows + block * per_block;
    const int end = min(min(first + per_block, (tile.row + 1) * tile_rows), plan_.m);
    const int width = min(columns, plan_.n - column);
    if (width <= 0) return;
    for (int row = first; row < end; ++row) {
      const std::int64_t index = (std::int64_t{tile.group} * plan_.m + row) * plan_.n + column;
      hopper::prefetch_bytes(static_cast<const float*>(plan_.out) + index, static_cast<std::uint32_t>(width) * 4);
    }
  }

  const Plan& plan_;
  std::uint32_t memory_;
  const int* offsets_;
  int rank_;
  RingPlace<Memory::stages> at_;
};

// One of the two warpgroups that multiply.
template <class T, GroupedForm form, int columns>
class Consumer {
  using Memory = Layout<columns>;
  static constexpr int sums = columns / 2;  // of a thread: 64 rows by 128 threads
  static constexpr bool weights = form == GroupedForm::weights;
  static constexpr int left_along_m = weights ? 1 : 0, right_along_n = form == GroupedForm::transposed ? 0 : 1;
  // From one 16 terms to the next, as operands count: in 16 bytes. Along a row, or 16 rows on.
  static constexpr std::uint64_t left_step = left_along_m ? 16 * 128 / 16 : 2,
                                 right_step = right_along_n ? 16 * 128 / 16 : 2;
  static constexpr std::uint32_t left_apart = left_along_m ? box_bytes : 16,
                                 right_apart = right_along_n ? box_bytes : 16;

 public:
  __device__ Consumer(const Plan& plan, unsigned char* memory)
      : plan_(plan),
        memory_(memory),
        offsets_(reinterpret_cast<const int*>(memory + Memory::offsets)),
        thread_(static_cast<int>(threadIdx.x) - warpgroup),
        rank_(static_cast<int>(hopper::rank_in_cluster())) {}

  __device__ void run() {
    GroupTileWalk walk(offsets_, plan_.tiles);
    GroupTile tile;
    float sum[sums] = {};
    const int cluster = plan_.cluster, clusters = static_cast<int>(gridDim.x) / cluster;
    for (int number = static_cast<int>(blockIdx.x) / cluster; walk.find(number, tile); number += clusters) {
      multiply(tile, sum);
      const int row = tile.row * tile_rows + thread_ / warpgroup * half_rows + thread_ % warpgroup / 32 * 16;
      const int column = (tile.column * cluster + rank_) * columns;
      if constexpr (weights)
        add(sum, tile.group, row, column);
      else if (plan_.out_f32)
        store_f32(sum, tile.begin + row, tile.end, column);
      else
        store(sum, tile.begin + row, tile.end, column);
    }
  }

 private:
  __device__ void multiply(const GroupTile& tile, float (&sum)[sums]) {
    const int blocks = depth_blocks_of<form>(plan_, tile);
    const std::uint32_t memory = hopper::shared_address(memory_);
    const auto half = static_cast<std::uint32_t>(thread_ / warpgroup * box_bytes);
    int before = 0;
    hopper::hold(sum);
    for (int block = 0; block < blocks; ++block) {
      const auto stage = static_cast<std::uint32_t>(at_.stage * Memory::stage_bytes);
      hopper::wait_for_phase(memory + static_cast<std::uint32_t>(Memory::filled + at_.stage * 8), at_.parity);
      if constexpr (weights) {
        const int valid = tile.end - tile.begin - block * depth;
        if (valid < depth) clear_rows(memory_ + stage, valid);
      }
      const std::uint64_t left = hopper::operand(memory + stage + half, left_apart);
      const std::uint64_t right = hopper::operand(memory + stage + left_bytes, right_apart);
      hopper::begin_products();
#pragma unroll
      for (int step = 0; step < depth / 16; ++step)
        hopper::start_product<T, left_along_m, right_along_n>(sum, left + step * left_step, right + step * right_step,
                                                              block + step > 0);
      hopper::commit_products();
      hopper::wait_for_products<1>();
      if (block > 0) release(before);
      before = at_.stage;
      at_.next();
    }
    hopper::wait_for_products<0>();
    hopper::hold(sum);
    release(before);
  }

  // Rows of the next group, or behind the last, add nothing, whatever they hold: not even a NaN times zero.
  __device__ void clear_rows(unsigned char* stage, int first) const {
    const int chunks = (depth - first) * 8;  // of 16 bytes, in each box
    for (int i = thread_; i < Memory::stage_bytes / box_bytes * chunks; i += 2 * warpgroup)
      *reinterpret_cast<uint4*>(stage + i / chunks * box_bytes + first * 128 + i % chunks * 16) = uint4{};
    hopper::publish_to_engines();
    hopper::sync_some<1, 2 * warpgroup>();
  }

  // Both blocks of a cluster write to the stage, so each warp tells both.
  __device__ void release(int stage) const {
    const int rank = thread_ % 32;
    if (rank >= plan_.cluster) return;
    hopper::arrive_at(hopper::shared_address(memory_) + static_cast<std::uint32_t>(Memory::emptied + stage * 8),
                      static_cast<std::uint32_t>(rank));
  }

  // From here on `row` is the first of the warp's 16. A warp turns its pieces round by itself.
  __device__ void store(const float (&sum)[sums], int row, int end, int column) const {
    unsigned char* const piece = memory_ + Memory::pieces + thread_ / 32 * piece_bytes;
    const int lane = thread_ % 32;
    T* const out = static_cast<T*>(plan_.out);
#pragma unroll
    for (int part = 0; part < columns / piece_columns; ++part) {
      __syncwarp();
#pragma unroll
      for (int eight = 0; eight < piece_columns / 8; ++eight)
#pragma unroll
        for (int lower = 0; lower < 2; ++lower) {
          const float* pair = sum + part * (piece_columns / 2) + eight * 4 + lower * 2;
          const Pack<T, 2> two{from_float<T>(pair[0]), from_float<T>(pair[1])};
          *reinterpret_cast<Pack<T, 2>*>(piece + (lane / 4 + lower * 8) * piece_stride + eight * 16 + lane % 4 * 4) =
              two;
        }
      __syncwarp();
      const int first = column + part * piece_columns + lane % 8 * 8;
#pragma unroll
      for (int four = 0; four < 4; ++four) {
        const int in_piece = four * 4 + lane / 8;
        if (row + in_piece < end && first < plan_.n)
          kernels::store(out + std::int64_t{row + in_piece} * plan_.n + first,
                         *reinterpret_cast<const Pack<T, 8>*>(piece + in_piece * piece_stride + lane % 8 * 16));
      }
    }
  }

  __device__ void store_f32(const float (&sum)[sums], int row, int end, int column) const {
    const int lane = thread_ % 32, first = column + lane % 4 * 2;
#pragma unroll
    for (int lower = 0; lower < 2; ++lower) {
      const int r = row + lane / 4 + lower * 8;
      float* const out = static_cast<float*>(plan_.out) + std::int64_t{r} * plan_.n + first;
#pragma unroll
      for (int eight = 0; eight < columns / 8; ++eight)
        if (r < end && first + eight * 8 < plan_.n)
          *reinterpret_cast<float2*>(out + eight * 8) =
              make_float2(sum[eight * 4 + lower * 2], sum[eight * 4 + lower * 2 + 1]);
    }
  }

  // out [M,N] of the group += sums; some are read before the first is written, so that the waits overlap.
  __device__ void add(const float (&sum)[sums], int group, int row, int column) const {
    constexpr int batch = 8;
    const int lane = thread_ % 32, first = column + lane % 4 * 2, r = row + lane / 4;
    float* const out = static_cast<float*>(plan_.out) + (std::int64_t{group} * plan_.m + r) * plan_.n + first;
    const std::int64_t eight_rows = std::int64_t{8} * plan_.n;
#pragma unroll
    for (int begin = 0; begin < columns / 8; begin += batch) {
      float2 old[batch][2];
      const auto inside = [&](int eight, int lower) {
        return r + lower * 8 < plan_.m && first + (begin + eight) * 8 < plan_.n;
      };
#pragma unroll
      for (int eight = 0; eight < batch; ++eight)
#pragma unroll
        for (int lower = 0; lower < 2; ++lower)
          if (inside(eight, lower))
            old[eight][lower] = *reinterpret_cast<const float2*>(out + lower * eight_rows + (begin + eight) * 8);
#pragma unroll
      for (int eight = 0; eight < batch; ++eight)
#pragma unroll
        for (int lower = 0; lower < 2; ++lower) {
          const int i = (begin + eight) * 4 + lower * 2;
          if (inside(eight, lower))
            *reinterpret_cast<float2*>(out + lower * eight_rows + (begin + eight) * 8) =
                make_float2(old[eight][lower].x + sum[i], old[eight][lower].y + sum[i + 1]);
        }
    }
  }

  const Plan& plan_;
  unsigned char* memory_;
  const int* offsets_;
  int thread_;  // among those of both warpgroups
  int rank_;
  RingPlace<Memory::stages> at_;
};

template <class T, GroupedForm form, int columns>
__global__ void __launch_bounds__(threads, 1) multiply_groups(const __grid_constant__ Plan plan) {
  using Memory = Layout<columns>;
  extern __shared__ unsigned char unaligned[];
  const std::uint32_t begin = hopper::shared_address(unaligned);
  unsigned char* const memory = unaligned + (-begin & (stage_alignment - 1));
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i <= plan.tiles.groups; i += threads)
    reinterpret_cast<int*>(memory + Memory::offsets)[i] = plan.offsets[i];
  if (thread == 0) {
    const std::uint32_t address = hopper::shared_address(memory);
    for (int stage = 0; stage < Memory::stages; ++stage) {
      hopper::init_barrier(address + static_cast<std::uint32_t>(Memory::filled + stage * 8), 1);
      hopper::init_barrier(address + static_cast<std::uint32_t>(Memory::emptied + stage * 8),
                           static_cast<std::uint32_t>(consumer_warps * plan.cluster));
    }
    hopper::publish_barriers();
  }
  __syncthreads();
  hopper::sync_cluster();
  if (thread < warpgroup) {
    hopper::shrink_registers<40>();
    if (thread == 0) Producer<form, columns>(plan, memory).run();
  } else {
    hopper::grow_registers<232>();
    Consumer<T, form, columns>(plan, memory).run();
  }
  hopper::sync_cluster();  // the other block may still write to this one's memory
}

}  // namespace tera::cuda::kernels::grouped
