#pragma once
// The device code of hopper_grouped_gemm.cu: a persistent, warp-specialised grouped GEMM.
//
// A thread block cluster of two goes through tiles of the output. One thread of a block's first warpgroup (the
// producer) fills a pipeline of stages by TMA, each of 64 terms of the sums; the other two warpgroups (consumers)
// multiply by wgmma, a part of 64 rows each. Of what both blocks need of a stage each loads half and multicasts it to
// both:
//
//   Pair::rows       256 rows, the second block has the lower ones: they share the columns' operand. Less is fetched,
//                    but a group ends in the middle of a higher tile.
//   Pair::columns    128 rows, the second block has the columns further right: they share the rows' operand.
//
// Each tile may be of either kind: both blocks find it by the same numbers, a stage has as many bytes and arrivals in
// both, and a stage is free when both blocks have read theirs, whoever fills it next.
//
// The epilogue writes results to shared memory, from where TMA stores them while the next tile's sums are made: stores
// by all blocks at the same time, when the tensor cores have nothing to do, cost a fifth of the time and more. TMA
// stores full boxes, which one thread issues: 64 rows issued one by one took up to 2 microseconds more for a tile.

#include "tera/backend/cuda/kernels/experts/group_tiles.cuh"
#include "tera/backend/cuda/kernels/hopper/hopper_grouped_gemm.cuh"
#include "tera/backend/cuda/kernels/hopper/hopper_wgmma.cuh"

namespace tera::cuda::kernels::grouped {

using hopper::blocks_of_cluster, hopper::box_bytes, hopper::box_columns, hopper::tile_k, hopper::stage_alignment,
    hopper::warpgroup;

constexpr int threads = 3 * warpgroup;
constexpr int left_bytes = 2 * box_bytes;
constexpr int max_groups = 512;

// The epilogue's staging buffer of a warpgroup: 512 bytes of each of its 64 rows, as boxes of 128 bytes side by side.
constexpr int boxes_of_piece = 4, pieces_bytes = boxes_of_piece * box_bytes;
template <class Out>
constexpr int out_box_columns = 128 / static_cast<int>(sizeof(Out));
template <class Out>
constexpr int piece_columns = boxes_of_piece * 128 / static_cast<int>(sizeof(Out));

// Offsets in shared memory, by the width of a tile.
template <int columns>
struct Layout {
  static constexpr int right_bytes = columns * tile_k * 2, stage_bytes = left_bytes + right_bytes;
  static constexpr int stages = columns == 256 ? 3 : 4;
  static constexpr int pieces = stages * stage_bytes;
  static constexpr int filled = pieces + 2 * pieces_bytes, emptied = filled + stages * 8;
  static constexpr int offsets = emptied + stages * 8;
  static constexpr int bytes = offsets + (max_groups + 1) * 4;
};

struct Plan {
  CUtensorMap a, b, out_map;
  void* out;
  const std::int32_t* offsets;
  GroupTileShape tiles;
  int m, n, k_tiles;
  bool out_f32;
  bool accumulate;  // weights
};

template <GroupedForm form>
__device__ int k_tiles_of(const Plan& plan, const GroupTile& tile) {
  return form == GroupedForm::weights ? (tile.end - tile.begin + tile_k - 1) / tile_k : plan.k_tiles;
}

// Rows are counted from those of the group (weights: of M).
template <GroupedForm form, int columns>
__device__ BlockTile part_of(const Plan& plan, const GroupTile& tile, int rank) {
  return block_tile(tile, form == GroupedForm::weights ? plan.m : tile.end - tile.begin, columns, rank);
}

// The persistent kernel's tile scheduler, the same in both blocks of a cluster.
template <int columns>
__device__ GroupTileScheduler scheduler_of(const Plan& plan, const unsigned char* memory) {
  return {reinterpret_cast<const int*>(memory + Layout<columns>::offsets), plan.tiles};
}

// Issues the TMA loads of all stages.
template <GroupedForm form, int columns>
class Producer {
  using Memory = Layout<columns>;

 public:
  __device__ Producer(const Plan& plan, unsigned char* memory)
      : plan_(plan),
        memory_(hopper::shared_address(memory)),
        scheduler_(scheduler_of<columns>(plan, memory)),
        rank_(static_cast<int>(hopper::rank_in_cluster())) {}

  __device__ void run() {
    GroupTile tile;
    const int clusters = static_cast<int>(gridDim.x) / blocks_of_cluster;
    for (int number = static_cast<int>(blockIdx.x) / blocks_of_cluster; scheduler_.find(number, tile);
         number += clusters) {
      const BlockTile here = part_of<form, columns>(plan_, tile, rank_);
      const int blocks = k_tiles_of<form>(plan_, tile);
      for (int block = 0; block < blocks; ++block) {
        const std::uint32_t stage = memory_ + static_cast<std::uint32_t>(at_.stage * Memory::stage_bytes);
        const std::uint32_t filled = memory_ + static_cast<std::uint32_t>(Memory::filled + at_.stage * 8);
        hopper::mbarrier_wait(memory_ + static_cast<std::uint32_t>(Memory::emptied + at_.stage * 8), at_.parity ^ 1);
        hopper::mbarrier_arrive_expect_tx(filled,
                                          static_cast<std::uint32_t>(here.parts * box_bytes + Memory::right_bytes));
        fetch_left(tile, here, block * tile_k, stage, filled);
        fetch_right(tile, here.column, block * tile_k, stage + left_bytes, filled);
        if constexpr (form == GroupedForm::weights)
          if (plan_.accumulate) prefetch_out(tile.group, here, block, blocks);
        at_.next();
      }
    }
  }

 private:
  // Where both blocks need two boxes, each block loads one of them; a single box is loaded by the first block.
  __device__ void fetch_left(const GroupTile& tile, BlockTile here, int k, std::uint32_t to,
                             std::uint32_t filled) const {
    for (int part = 0; part < here.parts; ++part) {
      const int row = here.first + part * part_rows;
      const hopper::TmaCoordinates at = form == GroupedForm::weights ? hopper::TmaCoordinates{row, tile.begin + k, 0}
                                                                     : hopper::TmaCoordinates{k, tile.begin + row, 0};
      const std::uint32_t part_to = to + static_cast<std::uint32_t>(part * box_bytes);
      if (tile.pair == Pair::rows)
        hopper::tma_load(part_to, plan_.a, at, filled);
      else if (part == rank_)
        hopper::tma_load_multicast(0b11, part_to, plan_.a, at, filled);
    }
  }

  // Loads both halves, or multicasts this block's half to both blocks.
  __device__ void fetch_right(const GroupTile& tile, int column, int k, std::uint32_t to, std::uint32_t filled) const {
    constexpr int half_columns = columns / 2, half_bytes = Memory::right_bytes / 2;
    for (int half = 0; half < 2; ++half) {
      if (tile.pair == Pair::rows && half != rank_) continue;
      fetch_columns(tile, column + half * half_columns, k, to + static_cast<std::uint32_t>(half * half_bytes), filled);
    }
  }

  __device__ void fetch_columns(const GroupTile& tile, int first, int k, std::uint32_t to, std::uint32_t filled) const {
    const auto fetch = [&](int box, hopper::TmaCoordinates at) {
      const std::uint32_t box_to = to + static_cast<std::uint32_t>(box * box_bytes);
      if (tile.pair == Pair::rows)
        hopper::tma_load_multicast(0b11, box_to, plan_.b, at, filled);
      else
        hopper::tma_load(box_to, plan_.b, at, filled);
    };
    if constexpr (form == GroupedForm::transposed) {
      fetch(0, {k, first, tile.group});
    } else {
      constexpr bool weights = form == GroupedForm::weights;
      for (int box = 0; box < columns / 2 / box_columns; ++box)
        fetch(box, {first + box * box_columns, weights ? tile.begin + k : k, weights ? 0 : tile.group});
    }
  }

  // Prefetches the rows of out that will be added to into L2 while the sums are made, some rows with every k tile.
  __device__ void prefetch_out(int group, BlockTile here, int block, int blocks) const {
    const int all = here.parts * part_rows, per_block = (all + blocks - 1) / blocks;
    const int first = here.first + block * per_block, end = min(min(first + per_block, here.first + all), plan_.m);
    const int width = min(columns, plan_.n - here.column);
    if (width <= 0) return;
    for (int row = first; row < end; ++row) {
      const std::int64_t index = (std::int64_t{group} * plan_.m + row) * plan_.n + here.column;
      hopper::bulk_prefetch_l2(static_cast<const float*>(plan_.out) + index, static_cast<std::uint32_t>(width) * 4);
    }
  }

  const Plan& plan_;
  std::uint32_t memory_;
  GroupTileScheduler scheduler_;
  int rank_;
  hopper::PipelineState<Memory::stages> at_;
};

// One of the two consumer warpgroups.
template <class T, GroupedForm form, int columns>
class Consumer {
  using Memory = Layout<columns>;
  static constexpr int sums = columns / 2;  // accumulators per thread: 64 rows by 128 threads
  static constexpr bool weights = form == GroupedForm::weights;
  static constexpr int left_along_m = weights ? 1 : 0, right_along_n = form == GroupedForm::transposed ? 0 : 1;

 public:
  __device__ Consumer(const Plan& plan, unsigned char* memory)
      : plan_(plan),
        memory_(memory),
        scheduler_(scheduler_of<columns>(plan, memory)),
        thread_(static_cast<int>(threadIdx.x) - warpgroup),
        rank_(static_cast<int>(hopper::rank_in_cluster())) {}

  __device__ void run() {
    GroupTile tile;
    float sum[sums] = {};
    const int clusters = static_cast<int>(gridDim.x) / blocks_of_cluster;
    for (int number = static_cast<int>(blockIdx.x) / blocks_of_cluster; scheduler_.find(number, tile);
         number += clusters) {
      const BlockTile here = part_of<form, columns>(plan_, tile, rank_);
      if (part() >= here.parts) {
        skip_tile(tile);
        continue;
      }
      const int row = here.first + part() * part_rows;
      if (weights && tile.begin == tile.end) {
        store_zeros({here.column, row, tile.group});
        continue;
      }
      multiply(tile, sum);
      if constexpr (weights)
        store_tile<float>(sum, {here.column, row, tile.group}, part_rows);
      else if (plan_.out_f32)
        store_tile<float>(sum, {here.column, tile.begin + row, 0}, tile.end - tile.begin - row);
      else
        store_tile<T>(sum, {here.column, tile.begin + row, 0}, tile.end - tile.begin - row);
    }
    hopper::bulk_wait_group();
  }

 private:
  // Waits until the stage is filled, then clears the terms that are not the group's.
  __device__ void wait_for_stage(const GroupTile& tile, int block) const {
    hopper::mbarrier_wait(hopper::shared_address(memory_) + static_cast<std::uint32_t>(Memory::filled + at_.stage * 8),
                          at_.parity);
    if constexpr (weights) {
      const int valid = tile.end - tile.begin - block * tile_k;
      if (valid < tile_k) clear_rows(memory_ + at_.stage * Memory::stage_bytes, valid);
    }
  }

  // Releases the tile's stages without wgmma: the block has no rows for this warpgroup.
  __device__ void skip_tile(const GroupTile& tile) {
    const int blocks = k_tiles_of<form>(plan_, tile);
    for (int block = 0; block < blocks; ++block) {
      wait_for_stage(tile, block);
      release(at_.stage);
      at_.next();
    }
  }

  __device__ void multiply(const GroupTile& tile, float (&sum)[sums]) {
    const int blocks = k_tiles_of<form>(plan_, tile);
    const std::uint32_t memory = hopper::shared_address(memory_);
    const auto half = static_cast<std::uint32_t>(thread_ / warpgroup * box_bytes);
    int before = 0;
    hopper::wgmma_fence_registers(sum);
    for (int block = 0; block < blocks; ++block) {
      const auto stage = static_cast<std::uint32_t>(at_.stage * Memory::stage_bytes);
      wait_for_stage(tile, block);
      hopper::wgmma_tile<T, left_along_m, right_along_n>(sum, memory + stage + half, memory + stage + left_bytes,
                                                         block == 0);
      hopper::wgmma_wait<1>();
      if (block > 0) release(before);
      before = at_.stage;
      at_.next();
    }
    hopper::wgmma_wait<0>();
    hopper::wgmma_fence_registers(sum);
    release(before);
  }

  // Rows of the next group, or after the last, add nothing, whatever they hold: not even a NaN times zero.
  __device__ void clear_rows(unsigned char* stage, int first) const {
    const int chunks = (tile_k - first) * 8;  // chunks of 16 bytes, in each box
    for (int i = thread_; i < Memory::stage_bytes / box_bytes * chunks; i += 2 * warpgroup)
      *reinterpret_cast<uint4*>(stage + i / chunks * box_bytes + first * 128 + i % chunks * 16) = uint4{};
    hopper::fence_proxy_async_shared();
    hopper::named_barrier_sync<2 * warpgroup>(1);
  }

  __device__ void release(int stage) const {
    hopper::release_stage(hopper::shared_address(memory_) + static_cast<std::uint32_t>(Memory::emptied + stage * 8));
  }

  // The epilogue: stores sums of 64 rows to out from these coordinates on, piece by piece. When the piece before has
  // been read, all threads write to shared memory, and one issues the TMA stores. These drop what is outside of out,
  // but not what is another group's: the last rows of a group are copied by threads.
  template <class Out>
  __device__ void store_tile(const float (&sum)[sums], hopper::TmaCoordinates to, int rows_of_group) const {
    constexpr int width = columns < piece_columns<Out> ? columns : piece_columns<Out>;
#pragma unroll
    for (int piece = 0; piece < columns / width; ++piece) {
      hopper::bulk_wait_group_read();
      sync_part();
      write_piece<Out, width>(sum + piece * (width / 2));
      hopper::fence_proxy_async_shared();
      sync_part();
      if (rows_of_group >= part_rows)
        issue_stores<Out, width>(to);
      else
        copy_rows<Out, width>(to, rows_of_group);
      to.x += width;
    }
  }

  template <class Out, int width>
  __device__ void issue_stores(hopper::TmaCoordinates to) const {
    if (thread_ % warpgroup != 0) return;
    std::uint32_t from = hopper::shared_address(piece());
#pragma unroll
    for (int box = 0; box < width / out_box_columns<Out>; ++box) {
      if (weights && plan_.accumulate)
        hopper::tma_reduce_add(plan_.out_map, to, from);
      else
        hopper::tma_store(plan_.out_map, to, from);
      to.x += out_box_columns<Out>;
      from += box_bytes;
    }
    hopper::bulk_commit_group();
  }

  template <class Out, int width>
  __device__ void copy_rows(hopper::TmaCoordinates to, int rows) const {
    constexpr int chunk_columns = 16 / static_cast<int>(sizeof(Out)), chunks = width / chunk_columns;
#pragma unroll 1  // registers are full of sums
    for (int i = thread_ % warpgroup; i < rows * chunks; i += warpgroup) {
      const int row = i / chunks, chunk = i % chunks, column = to.x + chunk * chunk_columns;
      if (column >= plan_.n) continue;
      Out* const out = static_cast<Out*>(plan_.out) + std::int64_t{to.y + row} * plan_.n + column;
      *reinterpret_cast<uint4*>(out) = *reinterpret_cast<const uint4*>(piece() + hopper::swizzled_offset(row, chunk));
    }
  }

  // Stores zeros for a group without rows; they never were in the registers of sums (that would cost spills).
  __device__ void store_zeros(hopper::TmaCoordinates to) const {
    const int thread = thread_ % warpgroup;
    hopper::bulk_wait_group_read();
    sync_part();
    for (int i = thread; i < box_bytes / 16; i += warpgroup) reinterpret_cast<uint4*>(piece())[i] = uint4{};
    hopper::fence_proxy_async_shared();
    sync_part();
    if (thread != 0) return;
    for (const int end = min(to.x + columns, plan_.n); to.x < end; to.x += out_box_columns<float>)
      hopper::tma_store(plan_.out_map, to, hopper::shared_address(piece()));
    hopper::bulk_commit_group();
  }

  // A thread has two columns of every eight, in rows r and r + 8.
  template <class Out, int width>
  __device__ void write_piece(const float* sum) const {
    if constexpr (sizeof(Out) == 4)
      write_floats<width>(sum);
    else
      hopper::store_swizzled<Out, width>(hopper::shared_address(piece()), sum);
  }

  // Avoids bank conflicts: eight columns are 32 bytes, which in rows r and r + 1 would lie in the same banks. Where it
  // pays, odd rows write another eight at the same time.
  template <int width>
  __device__ void write_floats(const float* sum) const {
    constexpr int swap_by = weights ? 2 : 0;
    const int lane = thread_ % 32, row = thread_ % warpgroup / 32 * 16 + lane / 4;
    const bool swaps = swap_by != 0 && row % 2 != 0;
    int start = hopper::swizzled_offset(row, 0) ^ (swaps ? swap_by * 32 : 0) ^ lane % 4 * 8;
    asm volatile("" : "+r"(start));
#pragma unroll
    for (int eight = 0; eight < width / 8; ++eight)
#pragma unroll
      for (int lower = 0; lower < 2; ++lower) {
        const float* const straight = sum + eight * 4 + lower * 2;
        const float* const other = sum + (eight ^ swap_by) * 4 + lower * 2;
        *reinterpret_cast<float2*>(piece() + eight / 4 * box_bytes + lower * 8 * 128 + (start ^ eight % 4 * 32)) = {
            swaps ? other[0] : straight[0], swaps ? other[1] : straight[1]};
      }
  }

  __device__ unsigned char* piece() const { return memory_ + Memory::pieces + part() * pieces_bytes; }
  __device__ int part() const { return thread_ / warpgroup; }
  __device__ void sync_part() const { hopper::named_barrier_sync<warpgroup>(2 + part()); }

  const Plan& plan_;
  unsigned char* memory_;
  GroupTileScheduler scheduler_;
  int thread_;  // among those of both warpgroups
  int rank_;
  hopper::PipelineState<Memory::stages> at_;
};

template <class T, GroupedForm form, int columns>
__global__ void __launch_bounds__(threads, 1) grouped_gemm_kernel(const __grid_constant__ Plan plan) {
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
      hopper::mbarrier_init(address + static_cast<std::uint32_t>(Memory::filled + stage * 8), 1);
      hopper::mbarrier_init(address + static_cast<std::uint32_t>(Memory::emptied + stage * 8),
                            static_cast<std::uint32_t>(hopper::consumer_warps * blocks_of_cluster));
    }
    hopper::fence_mbarrier_init();
  }
  __syncthreads();
  hopper::sync_cluster();
  // Registers: 56 + 2 x 224 are the three times 168 that the block begins with.
  if (thread < warpgroup) {
    hopper::setmaxnreg_dec<56>();
    if (thread == 0) Producer<form, columns>(plan, memory).run();
  } else {
    hopper::setmaxnreg_inc<224>();
    Consumer<T, form, columns>(plan, memory).run();
  }
  hopper::sync_cluster();  // the other block may still write to this one's memory
}

}  // namespace tera::cuda::kernels::grouped
