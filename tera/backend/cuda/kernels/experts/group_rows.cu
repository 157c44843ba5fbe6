// A stable counting sort of the router's choices by expert. Blocks and, inside a block, warps take consecutive parts of
// the choices. One pass counts the choices of each block for each expert (a histogram); the second finds the rows of
// its choices by a prefix sum over the counts of all blocks, and scatters them in order. With a capacity it makes
// lists, and in a third pass a block for each expert drops choices beyond the capacity. Atomics count only, so that the
// result does not depend on the order of threads.

#include "tera/backend/cuda/kernels/experts/group_rows.cuh"

#include "tera/backend/cuda/kernels/pdl.cuh"
#include "tera/backend/cuda/kernels/types.cuh"

namespace tera::cuda::kernels {
namespace {

constexpr int threads = 256, warps = threads / 32;
constexpr unsigned all_lanes = 0xffffffffu;

__device__ int thread_index() { return static_cast<int>(threadIdx.x); }

// The group of choice i, or -1 where its expert is on another rank.
__device__ int group_of(const GroupRows& args, std::int64_t i) {
  const std::int64_t group = args.experts[i] - args.first_expert;
  return group >= 0 && group < args.groups ? static_cast<int>(group) : -1;
}

struct Part {
  std::int64_t begin, end;
};
// A block's part: full rounds of all its warps.
__device__ Part part_of_block(const GroupRows& args) {
  const std::int64_t size = (args.choices + args.blocks - 1) / args.blocks, rounds = (size + threads - 1) / threads;
  const std::int64_t begin = blockIdx.x * rounds * threads, end = begin + rounds * threads;
  return {begin < args.choices ? begin : args.choices, end < args.choices ? end : args.choices};
}
__device__ Part part_of_warp(const GroupRows& args) {
  const std::int64_t size = (args.choices + args.blocks - 1) / args.blocks, rounds = (size + threads - 1) / threads;
  const std::int64_t begin = (static_cast<std::int64_t>(blockIdx.x) * warps + threadIdx.x / 32) * rounds * 32;
  const std::int64_t end = begin + rounds * 32;
  return {begin < args.choices ? begin : args.choices, end < args.choices ? end : args.choices};
}

// The exclusive prefix sum of `value` over the block's threads; total is the sum of all. shared holds `warps` numbers.
__device__ int sum_before(int value, int* shared, int& total) {
  const int lane = thread_index() % 32, warp = thread_index() / 32;
  int sum = value;
  for (int distance = 1; distance < 32; distance *= 2) {
    const int other = __shfl_up_sync(all_lanes, sum, distance);
    if (lane >= distance) sum += other;
  }
  __syncthreads();  // shared may still be read from an earlier call
  if (lane == 31) shared[warp] = sum;
  __syncthreads();
  int before = 0;
  total = 0;
  for (int w = 0; w < warps; ++w) {
    before += w < warp ? shared[w] : 0;
    total += shared[w];
  }
  return before + sum - value;
}

__global__ void __launch_bounds__(threads) count_choices(GroupRows args) {
  pdl_trigger();
  __shared__ int counts[max_groups];
  for (int g = thread_index(); g < args.groups; g += threads) counts[g] = 0;
  __syncthreads();
  const Part part = part_of_block(args);
  for (std::int64_t i = part.begin + thread_index(); i < part.end; i += threads)
    if (const int g = group_of(args, i); g >= 0) atomicAdd(&counts[g], 1);
  __syncthreads();
  std::int32_t* to = args.counts + static_cast<std::int64_t>(blockIdx.x) * args.groups;
  for (int g = thread_index(); g < args.groups; g += threads) to[g] = counts[g];
}

// Where each group's choices begin, over all blocks (starts [groups+1]), and how many of them earlier blocks have
// (before [groups]).
__device__ void sum_counts(const GroupRows& args, int* starts, int* before, int* scratch) {
  constexpr int groups_per_thread = max_groups / threads;
  for (int g = thread_index(); g < max_groups; g += threads) {
    int earlier = 0, all = 0;
#pragma unroll 8
    for (int block = 0; g < args.groups && block < args.blocks; ++block) {
      const int count = args.counts[static_cast<std::int64_t>(block) * args.groups + g];
      earlier += block < static_cast<int>(blockIdx.x) ? count : 0;
      all += count;
    }
    starts[g] = all;
    before[g] = earlier;
  }
  __syncthreads();
  int mine = 0, total = 0;
  for (int u = 0; u < groups_per_thread; ++u) mine += starts[thread_index() * groups_per_thread + u];
  int next = sum_before(mine, scratch, total);
  for (int u = 0; u < groups_per_thread; ++u) {
    int& start = starts[thread_index() * groups_per_thread + u];
    const int count = start;
    start = next;
    next += count;
  }
  if (thread_index() == 0) starts[max_groups] = total;  // groups that are not there end here
  __syncthreads();
}

// next[warp][g]: the row of the warp's first choice of g.
__device__ void find_rows(const GroupRows& args, const Part& part, const int* starts, const int* before,
                          int (*next)[max_groups]) {
  const int lane = thread_index() % 32, warp = thread_index() / 32;
  for (int g = lane; g < args.groups; g += 32) next[warp][g] = 0;
  __syncwarp();
  for (std::int64_t i = part.begin + lane; i < part.end; i += 32)
    if (const int g = group_of(args, i); g >= 0) atomicAdd(&next[warp][g], 1);
  __syncthreads();
  for (int g = thread_index(); g < args.groups; g += threads) {
    int place = starts[g] + before[g];
    for (int w = 0; w < warps; ++w) {
      const int count = next[w][g];
      next[w][g] = place;
      place += count;
    }
  }
  __syncthreads();
}

__device__ void write_offsets(const GroupRows& args, const int* starts) {
  for (int g = thread_index(); g <= args.groups; g += threads) {
    if (args.capacity > 0)
      args.starts[g] = starts[g];
    else
      args.offsets[g] = starts[g] < args.rows ? starts[g] : static_cast<int>(args.rows);
  }
  if (args.capacity > 0 || thread_index() != 0 || !args.overflow) return;
  const std::int64_t all = starts[args.groups];
  *args.overflow = all > args.rows ? static_cast<int>(all - args.rows) : 0;
}

__global__ void __launch_bounds__(threads) scatter_choices(GroupRows args) {
  pdl_trigger();
  pdl_wait();
  __shared__ int next[warps][max_groups];
  __shared__ int starts[max_groups + 1], before[max_groups], scratch[warps];
  sum_counts(args, starts, before, scratch);
  const Part part = part_of_warp(args);
  find_rows(args, part, starts, before, next);

  const int lane = thread_index() % 32, warp = thread_index() / 32;
  const std::int64_t list_size = args.capacity > 0 ? args.choices : args.rows;
  std::int32_t* list = args.capacity > 0 ? args.order : args.sources;
  for (std::int64_t first = part.begin; first < part.end; first += 32) {
    const std::int64_t i = first + lane;
    const int g = i < part.end ? group_of(args, i) : -1;
    const unsigned same = __match_any_sync(all_lanes, g);
    const int rank = __popc(same & ((1u << lane) - 1u));
    const int row = g >= 0 ? next[warp][g] + rank : -1;
    __syncwarp();
    if (g >= 0 && rank == 0) next[warp][g] = row + __popc(same);
    __syncwarp();
    const bool has_row = g >= 0 && row < list_size;
    if (has_row) list[row] = static_cast<std::int32_t>(i);
    if (i < part.end && (args.capacity == 0 || !has_row)) args.places[i] = has_row ? row : -1;
  }

  if (blockIdx.x == 0) write_offsets(args, starts);
  if (args.capacity > 0) return;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * threads;
  for (std::int64_t row = starts[args.groups] + static_cast<std::int64_t>(blockIdx.x) * threads + thread_index();
       row < args.rows; row += step)
    args.sources[row] = -2;
}

// A radix key that is greater for a greater weight; zeros are equal, NaN is the least.
__device__ std::uint32_t key_of(const GroupRows& args, std::int32_t choice) {
  if (!args.weights) return 0;
  const float weight = args.weights[choice] + 0.0f;  // turns -0 into 0
  if (weight != weight) return 0;
  const std::uint32_t bits = __float_as_uint(weight);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The choices within the capacity: greater keys, and so many of the first equal ones.
struct Limit {
  std::uint32_t key;
  int equal;
};

// Radix select: finds the capacity-th greatest of `count` keys, of which there are more, eight bits at a time.
__device__ Limit find_limit(const GroupRows& args, const std::int32_t* list, int count) {
  constexpr int digits = 256;
  static_assert(digits == threads);  // one for each
  __shared__ int counts[digits], scratch[warps];
  __shared__ Limit found;
  Limit limit{0, static_cast<int>(args.capacity)};
  for (int shift = 24; shift >= 0; shift -= 8) {
    counts[thread_index()] = 0;
    __syncthreads();
    for (int i = thread_index(); i < count; i += threads) {
      const std::uint32_t key = key_of(args, list[i]);
      const bool in_question = shift == 24 || key >> (shift + 8) == limit.key >> (shift + 8);
      if (in_question) atomicAdd(&counts[(key >> shift) % digits], 1);
    }
    __syncthreads();
    const int digit = digits - 1 - thread_index();  // the greatest first
    const int here = counts[digit];
    int all = 0;
    const int above = sum_before(here, scratch, all);
    if (above < limit.equal && above + here >= limit.equal)
      found = {limit.key | static_cast<std::uint32_t>(digit) << shift, limit.equal - above};
    __syncthreads();
    limit = found;
  }
  return limit;
}

__device__ void count_overflow(const GroupRows& args) {
  __shared__ int sums[32];
  int too_many = 0;
  for (int g = thread_index(); g < args.groups; g += threads) {
    const int count = args.starts[g + 1] - args.starts[g];
    too_many += count > args.capacity ? count - static_cast<int>(args.capacity) : 0;
  }
  too_many = block_sum(too_many, sums);
  if (thread_index() == 0 && args.overflow) *args.overflow = too_many;
}

// A block handles one group; the first block also writes the totals, and all of them fill the rows after the last
// group.
__global__ void __launch_bounds__(threads) keep_choices(GroupRows args) {
  pdl_wait();
  __shared__ int scratch[warps];
  const int group = static_cast<int>(blockIdx.x), capacity = static_cast<int>(args.capacity);
  const int begin = args.starts[group], count = args.starts[group + 1] - begin;
  const std::int32_t* list = args.order + begin;
  const int first_row = group * capacity;
  const bool choose = args.weights != nullptr && count > capacity;
  const Limit limit = choose ? find_limit(args, list, count) : Limit{0, capacity};

  int greater_before = 0, equal_before = 0;
  for (int first = 0; first < count; first += threads) {
    const int i = first + thread_index();
    const std::int32_t choice = i < count ? list[i] : 0;
    const std::uint32_t key = choose && i < count ? key_of(args, choice) : 0;
    const bool greater = i < count && key > limit.key, equal = i < count && key == limit.key;
    int all = 0;
    const int before = sum_before((greater ? 1 : 0) + (equal ? 1 << 16 : 0), scratch, all);  // two sums in one
    const int greater_here = greater_before + (before & 0xffff), equal_here = equal_before + (before >> 16);
    const int row = first_row + greater_here + min(equal_here, limit.equal);
    const bool stays = greater || (equal && equal_here < limit.equal);
    if (stays) args.sources[row] = choice;
    if (i < count) args.places[choice] = stays ? row : -1;
    greater_before += all & 0xffff;
    equal_before += all >> 16;
  }
  for (int i = min(count, capacity) + thread_index(); i < capacity; i += threads) args.sources[first_row + i] = -1;

  const std::int64_t end = static_cast<std::int64_t>(args.groups) * capacity;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * threads;
  for (std::int64_t row = end + static_cast<std::int64_t>(blockIdx.x) * threads + thread_index(); row < args.rows;
       row += step)
    args.sources[row] = -2;
  if (thread_index() == 0) args.offsets[group] = first_row;
  if (group != 0) return;
  if (thread_index() == 0) args.offsets[args.groups] = static_cast<int>(end);
  count_overflow(args);
}

}  // namespace

cudaError_t launch_group_rows(const GroupRows& args, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(args.blocks);
  count_choices<<<blocks, threads, 0, stream>>>(args);
  if (const cudaError_t status = cudaGetLastError(); status != cudaSuccess) return status;
  const cudaError_t status = pdl_launch<scatter_choices>(blocks, threads, stream, args);
  if (status != cudaSuccess || args.capacity == 0) return status;
  return pdl_launch<keep_choices>(static_cast<unsigned>(args.groups), threads, stream, args);
}

}  // namespace tera::cuda::kernels
