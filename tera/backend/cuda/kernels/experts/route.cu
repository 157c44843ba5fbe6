#include "tera/backend/cuda/kernels/experts/route_rows.cuh"
#include "tera/backend/cuda/kernels/pdl.cuh"

namespace tera::cuda::kernels {
namespace {

// Integers in the order of floats: -0 is 0, NaN is above everything, and left_out below.
constexpr std::uint32_t left_out = 0;
__device__ std::uint32_t rank_of(float x) {
  if (isnan(x)) return 0xffffffffu;
  const std::uint32_t bits = __float_as_uint(x + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The number of the highest rank, of equal ones the lowest; it is left out from then on. Every lane gets it.
template <int S>
__device__ int pop_best(std::uint32_t (&rank)[S]) {
  std::uint32_t best = rank[0];
  int slot = 0;
#pragma unroll
  for (int s = 1; s < S; ++s) {
    if (rank[s] <= best) continue;
    best = rank[s];
    slot = s;
  }
  const std::uint32_t top = __reduce_max_sync(all_lanes, best);
  const auto mine = static_cast<unsigned>(lane_of_thread() + slot * warp_size);
  const int number = static_cast<int>(__reduce_min_sync(all_lanes, best == top ? mine : ~0u));
#pragma unroll
  for (int s = 0; s < S; ++s)
    if (lane_of_thread() + s * warp_size == number) rank[s] = left_out;
  return number;
}

// The sum of the group_best best of `size` keys, best first. Lanes begin at different offsets to avoid bank conflicts,
// since groups are often as long as shared memory has banks.
__device__ float group_score(const RouteRule& rule, const float* key, int size) {
  float score = 0;
  std::uint32_t last_rank = 0xffffffffu;
  int last = -1;
  for (int taken = 0; taken < rule.group_best; ++taken) {
    std::uint32_t best_rank = left_out;
    int best = size;
    for (int i = 0, at = lane_of_thread() % size; i < size; ++i, at = at + 1 < size ? at + 1 : 0) {
      const std::uint32_t rank = rank_of(key[at]);
      const bool is_left = rank < last_rank || (rank == last_rank && at > last);
      if (!is_left || rank < best_rank || (rank == best_rank && at > best)) continue;
      best_rank = rank;
      best = at;
    }
    last_rank = best_rank;
    last = best;
    score += key[best];
  }
  return score;
}

// Group-limited routing: experts outside the best groups are left out. memory: a float for each expert, this warp's.
template <int S>
__device__ void mask_groups(const RouteRule& rule, const float (&key)[S], float* memory, std::uint32_t (&rank)[S]) {
  const int size = rule.experts / rule.groups, lane = lane_of_thread();
  __syncwarp();  // the row before has been read
#pragma unroll
  for (int s = 0; s < S; ++s) memory[lane + s * warp_size] = key[s];
  __syncwarp();
  std::uint32_t group_rank[S];
#pragma unroll
  for (int s = 0; s < S; ++s) {
    const int group = lane + s * warp_size;
    group_rank[s] = group < rule.groups ? rank_of(group_score(rule, memory + group * size, size)) : left_out;
  }
  __syncwarp();
#pragma unroll
  for (int s = 0; s < S; ++s)
    memory[lane + s * warp_size] = 0;  // from here on a flag for each group: whether it is chosen
  __syncwarp();
  for (int taken = 0; taken < rule.group_topk; ++taken) {
    const int group = pop_best(group_rank);
    if (lane == 0) memory[group] = 1;
  }
  __syncwarp();
#pragma unroll
  for (int s = 0; s < S; ++s) {
    const int e = lane + s * warp_size;
    if (e < rule.experts && memory[e / size] == 0) rank[s] = left_out;
  }
}

// Top-k: lane k gets choice k. Scores rise with logits, so where only their order counts logits are better keys: they
// do not saturate.
template <int S>
__device__ int choose(const Route& args, const float (&x)[S], const float (&score)[S], float* memory) {
  const RouteRule& rule = args.rule;
  const bool by_groups = rule.group_topk < rule.groups;
  const bool by_score = args.bias || (by_groups && rule.group_best > 1);
  float key[S];
  std::uint32_t rank[S];
#pragma unroll
  for (int s = 0; s < S; ++s) {
    const int e = lane_of_thread() + s * warp_size;
    key[s] = by_score ? score[s] : x[s];
    if (args.bias && e < rule.experts) key[s] += args.bias[e];
    rank[s] = e < rule.experts ? rank_of(key[s]) : left_out;
  }
  if (by_groups) mask_groups(rule, key, memory, rank);
  int chosen = 0;
  for (int k = 0; k < rule.topk; ++k) {
    const int best = pop_best(rank);
    if (lane_of_thread() == k) chosen = best;
  }
  return chosen;
}

__device__ int balanced_choice(const RouteRule& rule, std::int64_t row_id) {
  const auto place = static_cast<std::uint64_t>(row_id) * static_cast<std::uint64_t>(rule.topk) +
                     static_cast<std::uint64_t>(lane_of_thread());
  return static_cast<int>(place % static_cast<std::uint64_t>(rule.experts));
}

struct RowRange {
  std::int64_t begin, end;
};
__device__ std::int64_t first_row_of(const RouteParts& parts, std::int64_t part) {
  const std::int64_t row = part * parts.part_rows - parts.first_row;
  return row < 0 ? 0 : row < parts.rows ? row : parts.rows;
}
__device__ RowRange rows_of_block(const Route& args, std::int64_t block) {
  const std::int64_t part = args.first_part + block / args.per_part;
  const std::int64_t begin = first_row_of(args.parts, part) + block % args.per_part * args.block_rows;
  const std::int64_t part_end = first_row_of(args.parts, part + 1), end = begin + args.block_rows;
  return {begin, end < part_end ? end : part_end};
}

// A warp's sums over its rows. Counts are integers in shared memory, so their order does not matter.
template <int S>
struct WarpSums {
  float score[S] = {};
  float z = 0;
};

template <int S>
__device__ void route_row(const Route& args, std::int64_t row, float* memory, WarpSums<S>& sums, int* counts) {
  const RouteRule& rule = args.rule;
  const float* logits = args.logits + row * rule.experts;
  float x[S], score[S];
  load_experts(logits, rule.experts, minus_infinity(), x);
  Softmax all{0, 0};
  if (!rule.sigmoid || args.z_sum) all = row_softmax(x, score);
  float to_normal = 1;
  if (rule.sigmoid) {
    float sum = 0;
#pragma unroll
    for (int s = 0; s < S; ++s) sum += score[s] = sigmoid_of(x[s]).score;
    to_normal = 1 / (warp_sum(sum) + route_tiny);
  }
  const int chosen = rule.force_balance ? balanced_choice(rule, args.rows[row]) : choose(args, x, score, memory);
  const bool used = lane_of_thread() < rule.topk;
  const ChosenWeight weight = weigh(rule, used ? logits[chosen] : 0.0f, all);
  if (used) {
    args.experts[row * rule.topk + lane_of_thread()] = chosen;
    args.weights[row * rule.topk + lane_of_thread()] = weight.value * rule.scale;
    if (args.counts) atomicAdd(counts + chosen, 1);
  }
#pragma unroll
  for (int s = 0; s < S; ++s) sums.score[s] += score[s] * to_normal;
  if (args.z_sum) sums.z += log_sum(all) * log_sum(all);
}

// The sums of the block's warps, in order. memory: [warp][expert].
template <int S>
__device__ void write_block_sums(const Route& args, const WarpSums<S>& sums, float (*memory)[S * warp_size],
                                 const int* counts) {
  __shared__ float z[route_warps];
  const int lane = lane_of_thread(), warp = warp_of_thread(), experts = args.rule.experts;
  __syncwarp();
#pragma unroll
  for (int s = 0; s < S; ++s) memory[warp][lane + s * warp_size] = sums.score[s];
  if (lane == 0) z[warp] = sums.z;
  __syncthreads();
  const std::int64_t block = blockIdx.x;
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += route_warps * warp_size) {
    float total = 0;
#pragma unroll
    for (int w = 0; w < route_warps; ++w) total += memory[w][e];
    args.block_scores[block * experts + e] = total;
    args.block_counts[block * experts + e] = counts[e];
  }
  if (threadIdx.x != 0) return;
  float total = 0;
#pragma unroll
  for (int w = 0; w < route_warps; ++w) total += z[w];
  args.block_z[block] = total;
}

template <int S>
__global__ void __launch_bounds__(route_warps* warp_size) route_block(Route args) {
  pdl_trigger();
  __shared__ float memory[route_warps][S * warp_size];
  __shared__ int counts[S * warp_size];
  for (int e = static_cast<int>(threadIdx.x); e < S * warp_size; e += route_warps * warp_size) counts[e] = 0;
  __syncthreads();
  const RowRange rows = rows_of_block(args, blockIdx.x);
  WarpSums<S> sums;
  for (std::int64_t row = rows.begin + warp_of_thread(); row < rows.end; row += route_warps)
    route_row(args, row, memory[warp_of_thread()], sums, counts);
  if (args.block_scores) write_block_sums(args, sums, memory, counts);
}

// A block adds up warp_size experts of one part: every add_warps-th of its blocks per warp, then the warps in order.
constexpr int add_warps = 8;

__global__ void __launch_bounds__(add_warps* warp_size) add_route_blocks(Route args) {
  pdl_wait();
  __shared__ float scores[add_warps][warp_size];
  __shared__ int counts[add_warps][warp_size];
  const int lane = lane_of_thread(), warp = warp_of_thread(), experts = args.rule.experts;
  const int e = static_cast<int>(blockIdx.y) * warp_size + lane;
  const std::int64_t part = blockIdx.x;
  const bool has_rows = part >= args.first_part && part <= args.last_part;
  float score = 0;
  int count = 0;
  for (std::int64_t i = warp; has_rows && e < experts && i < args.per_part; i += add_warps) {
    const std::int64_t block = (part - args.first_part) * args.per_part + i;
    score += args.block_scores[block * experts + e];
    count += args.block_counts[block * experts + e];
  }
  scores[warp][lane] = score;
  counts[warp][lane] = count;
  __syncthreads();
  if (warp != 0) return;
  if (e < experts && part < args.all_parts) {
    float all_scores = 0;
    int all_counts = 0;
#pragma unroll
    for (int w = 0; w < add_warps; ++w) {
      all_scores += scores[w][lane];
      all_counts += counts[w][lane];
    }
    if (args.score_sums) args.score_sums[part * experts + e] = all_scores;
    if (args.counts) args.counts[part * experts + e] = all_counts;
  }
  if (!args.z_sum || blockIdx.x != 0 || blockIdx.y != 0) return;
  float z = 0;
  for (std::int64_t block = lane; block < args.blocks; block += warp_size) z += args.block_z[block];
  z = warp_sum(z);
  if (lane == 0) *args.z_sum = z;
}

// Kernels whose sums are few enough for one block.
constexpr int small_threads = 256;

__global__ void __launch_bounds__(small_threads) balance_loss(BalanceLoss args) {
  __shared__ double shared[warp_size];
  const double scale = *args.scale;
  double loss = 0;
  for (std::int64_t i = threadIdx.x; i < args.elements; i += small_threads) {
    const double load = args.load_factor * (args.counts ? static_cast<double>(args.counts[i]) : args.shares[i]);
    loss += load * static_cast<double>(args.score_sums[i]);
    args.loads[i] = (args.accumulate ? args.loads[i] : 0.0f) + static_cast<float>(scale * load);
  }
  loss = block_sum(loss, shared);
  if (threadIdx.x == 0) *args.loss = static_cast<float>(static_cast<double>(*args.loss) + loss);
}

__global__ void __launch_bounds__(small_threads) expert_bias(ExpertBias args) {
  __shared__ std::int64_t shared[warp_size];
  std::int64_t sum = 0;
  for (std::int64_t e = threadIdx.x; e < args.experts; e += small_threads) sum += args.counts[e];
  sum = block_sum(sum, shared);
  const bool moves = args.bias && !(args.grad_factor && !isfinite(*args.grad_factor));
  for (std::int64_t e = threadIdx.x; e < args.experts; e += small_threads) {
    const std::int64_t scaled = args.counts[e] * args.experts;  // against the mean, without a division
    if (moves) args.bias[e] += scaled < sum ? args.rate : scaled > sum ? -args.rate : 0.0f;
    if (args.shares) args.shares[e] = sum == 0 ? 0.0f : static_cast<float>(args.counts[e] / static_cast<double>(sum));
  }
}

}  // namespace

cudaError_t launch_route(const Route& args, cudaStream_t stream) {
  if (args.blocks > 0) {
    const cudaError_t status = with_slots(args.rule.experts, [&](auto slots) {
      route_block<decltype(slots)::value>
          <<<static_cast<unsigned>(args.blocks), route_warps * warp_size, 0, stream>>>(args);
      return cudaGetLastError();
    });
    if (status != cudaSuccess) return status;
  }
  if (!args.counts && !args.score_sums && !args.z_sum) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(args.all_parts > 0 ? args.all_parts : 1),
                  static_cast<unsigned>(divide_up(args.rule.experts, warp_size)));
  return pdl_launch<add_route_blocks>(grid, add_warps * warp_size, stream, args);
}

cudaError_t launch_balance_loss(const BalanceLoss& args, cudaStream_t stream) {
  balance_loss<<<1, small_threads, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t launch_expert_bias(const ExpertBias& args, cudaStream_t stream) {
  expert_bias<<<1, small_threads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace tera::cuda::kernels
