#include "tera/backend/cuda/kernels/hopper/hopper_attention_back.cuh"

#include <cmath>

#include "tera/backend/cuda/kernels/hopper/hopper_attention_back_tiles.cuh"
#include "tera/backend/cuda/kernels/hopper/hopper_tma.cuh"

namespace tera::cuda::kernels {
namespace {

using namespace attention_back;

constexpr float log2_e = 1.4426950408889634f;

struct DeltaArgs {
  AttentionRows out, dout;
  const float* lse;  // [heads][sequences * rows]
  float *lse_to, *delta;
  int* semaphores;
  std::int64_t semaphore_count;
  int rows, padded, heads, sequences;
};

// Rows of one head, eight channels for each thread: delta, the dot product of out and its gradient, and lse for powers
// of two. No query after the last row sees a key. The semaphores begin at zero.
constexpr int delta_threads = 256;
template <class T, int D>
__global__ void __launch_bounds__(delta_threads) prepare(DeltaArgs args) {
  constexpr int threads_of_row = D / 8;
  const int head = static_cast<int>(blockIdx.y), sequence = static_cast<int>(blockIdx.z);
  const std::int64_t number = (std::int64_t{sequence} * args.heads + head) * gridDim.x + blockIdx.x;
  const std::int64_t blocks = std::int64_t{gridDim.x} * gridDim.y * gridDim.z;
  for (std::int64_t i = number * delta_threads + threadIdx.x; i < args.semaphore_count; i += blocks * delta_threads)
    args.semaphores[i] = 0;
  const int part = static_cast<int>(threadIdx.x) % threads_of_row;
  const int row =
      static_cast<int>(blockIdx.x) * (delta_threads / threads_of_row) + static_cast<int>(threadIdx.x) / threads_of_row;
  float sum = 0, lse = INFINITY;
  if (row < args.rows) {
    const std::int64_t at = std::int64_t{sequence} * args.rows + row;
    const std::int64_t column = head * D + part * 8;
    const auto out = load<8>(static_cast<const T*>(args.out.data) + at * args.out.stride + column);
    const auto dout = load<8>(static_cast<const T*>(args.dout.data) + at * args.dout.stride + column);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = fmaf(to_float(out.value[i]), to_float(dout.value[i]), sum);
    if (part == 0) lse = args.lse[std::int64_t{head} * args.sequences * args.rows + at] * log2_e;
  }
#pragma unroll
  for (int apart = threads_of_row / 2; apart > 0; apart /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
  if (part != 0) return;
  const std::int64_t to = (std::int64_t{sequence} * args.heads + head) * args.padded + row;
  args.delta[to] = sum;
  args.lse_to[to] = lse;
}

struct FinishArgs {
  const float* sums;
  AttentionRows dq;
  int rows, heads, tiles, early;  // tiles, early: as in Plan
  float scale;
};

// Rows of one head in shared memory: all threads of a block write them, so that stores to global memory are coalesced.
template <class T, int D, int tile_rows>
struct HeadRows {
  static constexpr int row_elements = D + 8;  // so that rows begin in different banks
  T at[tile_rows * row_elements];

  // Four sums of a thread's wgmma accumulator: two columns of a row, and of the row eight after it.
  __device__ void put(int row, int column, float4 sum, float scale) {
    T* const to = at + row * row_elements + column;
    *reinterpret_cast<std::uint32_t*>(to) = pair_of<T>(sum.x * scale, sum.y * scale);
    *reinterpret_cast<std::uint32_t*>(to + 8 * row_elements) = pair_of<T>(sum.z * scale, sum.w * scale);
  }

  // Stores the tile's rows from row `first` of the sequence on, which has `rows`.
  __device__ void store_rows(AttentionRows to, std::int64_t sequence, int rows, int first, int head) const {
    constexpr int packs = D / 8;
    for (int i = static_cast<int>(threadIdx.x); i < tile_rows * packs; i += consumers) {
      const int row = first + i / packs;
      if (row >= rows) break;
      T* const start = static_cast<T*>(to.data) + (sequence * rows + row) * to.stride + head * D;
      store(start + i % packs * 8, load<8>(at + i / packs * row_elements + i % packs * 8));
    }
  }
};

__device__ inline float4 added(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }

// A tile of dq: the sums of late and early key tiles, in the layout of Consumer::stage_dq().
template <class T, int D>
__global__ void __launch_bounds__(consumers) finish_dq(FinishArgs args) {
  constexpr int tile_rows = Tiles<D>::queries_rows, per_keys = Tiles<D>::queries_per_keys;
  __shared__ alignas(16) HeadRows<T, D, tile_rows> rows;
  const int m = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  const int thread = static_cast<int>(threadIdx.x), half = thread / warpgroup;
  const std::int64_t sequence = blockIdx.z;
  const int all = args.tiles * per_keys, early = args.early * per_keys;
  const float* const sums = args.sums + (sequence * args.heads + head) * (all + all - early) * tile_floats;
  const auto* const of_early = reinterpret_cast<const float4*>(sums + std::int64_t{m} * tile_floats);
  const auto* const of_late = reinterpret_cast<const float4*>(sums + std::int64_t{all + m - early} * tile_floats);
  const int row = thread % warpgroup / 32 * 16 + thread % 32 / 4 + (D == 64 ? half * 64 : 0);
  const int column = thread % 4 * 2 + (D == 64 ? 0 : half * 64);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    float4 sum{};
    if (early > 0) sum = of_early[j * consumers + thread];
    if (m >= early) sum = added(sum, of_late[j * consumers + thread]);
    rows.put(row, column + 8 * j, sum, args.scale);
  }
  __syncthreads();
  rows.store_rows(args.dq, sequence, args.rows, m * tile_rows, head);
}

struct FinishKeysArgs {
  const float* key_sums;
  AttentionRows dk, dv;
  int rows, kv_heads, tiles, head_splits;
  float scale;
};

// A tile of dk or dv: the partial sums of all splits of the query heads, added in their order.
template <class T, int D>
__global__ void __launch_bounds__(consumers) finish_keys(FinishKeysArgs args) {
  __shared__ alignas(16) HeadRows<T, D, keys_rows> rows;
  constexpr int tile_packs = keys_rows * D / 4, packs = tile_packs / consumers;
  const int n = static_cast<int>(blockIdx.x) / 2, head = static_cast<int>(blockIdx.y);
  const bool values = blockIdx.x % 2 == 1;
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t sequence = blockIdx.z,
                     first = (sequence * args.kv_heads + head) * args.head_splits * args.tiles + n;
  const auto* from = reinterpret_cast<const float4*>(args.key_sums) + (2 * first + (values ? 1 : 0)) * tile_packs;
  float4 sums[packs] = {};
  for (int split = 0; split < args.head_splits; ++split, from += std::int64_t{2} * args.tiles * tile_packs)
#pragma unroll
    for (int j = 0; j < packs; ++j) sums[j] = added(sums[j], from[j * consumers + thread]);
#pragma unroll
  for (int j = 0; j < packs; ++j)
    rows.put(thread / 32 * 16 + thread % 32 / 4, thread % 4 * 2 + 8 * j, sums[j], values ? 1.0f : args.scale);
  __syncthreads();
  rows.store_rows(values ? args.dv : args.dk, sequence, args.rows, n * keys_rows, head);
}

cudaError_t encode_rows(CUtensorMap& map, const AttentionBackParams& params, const AttentionRows& rows, int heads,
                        int box_rows) {
  const std::int64_t per_sequence = params.q_rows / params.sequences;
  return encode_tma_descriptor(map, rows.data, params.scalar,
                               {.x = std::int64_t{heads} * params.head_size,
                                .y = per_sequence,
                                .z = params.sequences,
                                .box_y = box_rows,
                                .stride_y = rows.stride,
                                .stride_z = rows.stride * per_sequence});
}

cudaError_t encode_descriptors(Plan& plan, const AttentionBackParams& params) {
  const int queries_rows = tile_floats / params.head_size;
  const struct {
    CUtensorMap& map;
    const AttentionRows& rows;
    int heads, box_rows;
  } all[] = {{plan.q, params.q, params.heads, queries_rows},   {plan.dout, params.dout, params.heads, queries_rows},
             {plan.k, params.k, params.kv_heads, keys_rows},   {plan.v, params.v, params.kv_heads, keys_rows},
             {plan.dk, params.dk, params.kv_heads, keys_rows}, {plan.dv, params.dv, params.kv_heads, keys_rows}};
  for (const auto& one : all)
    if (const cudaError_t status = encode_rows(one.map, params, one.rows, one.heads, one.box_rows);
        status != cudaSuccess)
      return status;
  return cudaSuccess;
}

// Whether there is code for the types and sizes, and the grid is valid; hopper_supports() checks shapes.
bool has_code_for(const AttentionBackParams& params) {
  constexpr int max_in_grid = 65'535;
  return params.scalar != Scalar::f32 && (params.head_size == 64 || params.head_size == 128) &&
         params.heads <= max_in_grid && params.sequences <= max_in_grid;
}

HopperAttentionSizes sizes_of(const AttentionBackParams& params) {
  return {.sequences = params.sequences,
          .rows = params.q_rows / params.sequences,
          .heads = params.heads,
          .kv_heads = params.kv_heads,
          .head_size = params.head_size};
}

Plan plan_of(const AttentionBackParams& params, std::byte* memory) {
  const HopperAttentionSizes sizes = sizes_of(params);
  const HopperAttentionSpace space = hopper_attention_space(sizes);
  Plan plan{};
  plan.tiles = static_cast<int>(sizes.tiles());
  plan.early = plan.tiles / 2;
  plan.heads = params.heads;
  plan.kv_heads = params.kv_heads;
  plan.head_splits = static_cast<int>(sizes.head_splits());
  plan.group = plan.heads / (plan.kv_heads * plan.head_splits);
  plan.lse = reinterpret_cast<float*>(memory + space.lse);
  plan.delta = reinterpret_cast<float*>(memory + space.delta);
  plan.sums = reinterpret_cast<float*>(memory + space.sums);
  plan.key_sums = reinterpret_cast<float*>(memory + space.key_sums);
  plan.semaphores = reinterpret_cast<int*>(memory + space.semaphores);
  plan.units_taken = plan.semaphores + space.semaphore_count - 1;
  plan.scale = params.scale;
  plan.scale_log2 = params.scale * log2_e;
  return plan;
}

DeltaArgs delta_args(const AttentionBackParams& params, const Plan& plan) {
  return {.out = params.out,
          .dout = params.dout,
          .lse = params.lse,
          .lse_to = plan.lse,
          .delta = plan.delta,
          .semaphores = plan.semaphores,
          .semaphore_count = plan.units_taken - plan.semaphores + 1,
          .rows = static_cast<int>(params.q_rows / params.sequences),
          .padded = plan.tiles * keys_rows,
          .heads = params.heads,
          .sequences = params.sequences};
}

FinishArgs finish_args(const AttentionBackParams& params, const Plan& plan) {
  return {.sums = plan.sums,
          .dq = params.dq,
          .rows = static_cast<int>(params.q_rows / params.sequences),
          .heads = params.heads,
          .tiles = plan.tiles,
          .early = plan.early,
          .scale = params.scale};
}

FinishKeysArgs finish_keys_args(const AttentionBackParams& params, const Plan& plan) {
  return {.key_sums = plan.key_sums,
          .dk = params.dk,
          .dv = params.dv,
          .rows = static_cast<int>(params.q_rows / params.sequences),
          .kv_heads = plan.kv_heads,
          .tiles = plan.tiles,
          .head_splits = plan.head_splits,
          .scale = plan.scale};
}

template <class T, int D>
cudaError_t launch(const AttentionBackParams& params, std::byte* memory, cudaStream_t stream) {
  Plan plan = plan_of(params, memory);
  cudaError_t status = encode_descriptors(plan, params);
  constexpr int bytes = Tiles<D>::bytes;
  if (status == cudaSuccess)
    status = cudaFuncSetAttribute(attention_back_kernel<T, D>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (status != cudaSuccess) return status;
  const auto heads = static_cast<unsigned>(params.heads), sequences = static_cast<unsigned>(params.sequences);
  const int padded = plan.tiles * keys_rows;
  const dim3 row_blocks(static_cast<unsigned>(padded / (delta_threads * 8 / D)), heads, sequences);
  const dim3 tiles(static_cast<unsigned>(padded / Tiles<D>::queries_rows), heads, sequences);
  prepare<T, D><<<row_blocks, delta_threads, 0, stream>>>(delta_args(params, plan));
  status = cudaGetLastError();
  if (status != cudaSuccess) return status;  // units would find the semaphores of an earlier call
  attention_back_kernel<T, D><<<static_cast<unsigned>(sizes_of(params).units()), threads, bytes, stream>>>(plan);
  status = cudaGetLastError();
  if (status != cudaSuccess) return status;
  finish_dq<T, D><<<tiles, consumers, 0, stream>>>(finish_args(params, plan));
  status = cudaGetLastError();
  if (status != cudaSuccess || plan.head_splits == 1) return status;
  const dim3 key_tiles(2 * static_cast<unsigned>(plan.tiles), static_cast<unsigned>(params.kv_heads), sequences);
  finish_keys<T, D><<<key_tiles, consumers, 0, stream>>>(finish_keys_args(params, plan));
  return cudaGetLastError();
}

}  // namespace

bool hopper_attention_back_supports(const AttentionBackParams& params) { return has_code_for(params) && has_tma(); }

cudaError_t launch_hopper_attention_back(const AttentionBackParams& params, void* workspace, cudaStream_t stream) {
  if (!has_code_for(params)) return cudaErrorInvalidValue;
  auto* const memory = static_cast<std::byte*>(workspace);
  const auto launch_type = [&]<class T>(T) {
    return params.head_size == 64 ? launch<T, 64>(params, memory, stream) : launch<T, 128>(params, memory, stream);
  };
  return params.scalar == Scalar::bf16 ? launch_type(__nv_bfloat16{}) : launch_type(__half{});
}

}  // namespace tera::cuda::kernels
