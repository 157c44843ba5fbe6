// Flash attention's backward on tensor cores (mma.sync); see attention_backward.cu for the method and attention_mma.cuh
// for the layout.

#include "tera/backend/cuda/kernels/attention/attention_mma.cuh"

namespace tera::cuda::kernels {
namespace {

template <int padded>
constexpr std::size_t backward_shared() {
  return 6 * MmaTile<padded>::size * 2 + 4 * mma_rows * sizeof(float) + mma_rows * sizeof(AttentionRange);
}

// Shared memory of dq_mma_kernel and dkv_mma_kernel: two fixed tiles, two stages of two moving ones, lse (times log2 e)
// and delta of queries in two stages, and the fixed rows' ranges.
template <class T, int padded>
struct MmaBackwardTiles {
  using Tile = MmaTile<padded>;
  T *fixed_a, *fixed_b;
  float *lse, *delta;
  AttentionRange* ranges;

  __device__ explicit MmaBackwardTiles(unsigned char* shared) {
    fixed_a = reinterpret_cast<T*>(shared);
    fixed_b = fixed_a + Tile::size;
    lse = reinterpret_cast<float*>(fixed_a + 6 * Tile::size);
    delta = lse + 2 * mma_rows;
    ranges = reinterpret_cast<AttentionRange*>(delta + 2 * mma_rows);
  }
  __device__ T* moving_a(int stage) const { return fixed_a + (2 + 2 * stage) * Tile::size; }
  __device__ T* moving_b(int stage) const { return fixed_a + (3 + 2 * stage) * Tile::size; }

  __device__ void load_row_values(const AttentionBackParams& p, int head, int first_query, int stage) const {
    const int i = static_cast<int>(threadIdx.x);
    if (i >= mma_rows) return;
    const bool there = first_query + i < p.q_rows;
    const std::int64_t at = head * p.q_rows + first_query + i;
    lse[stage * mma_rows + i] = there ? p.lse[at] * log2_e : 0.0f;
    delta[stage * mma_rows + i] = there ? p.delta[at] : 0.0f;
  }
};

template <class T, int padded>
__global__ void __launch_bounds__(mma_threads, 2) dq_mma_kernel(AttentionBackParams p) {
  using Tile = MmaTile<padded>;
  extern __shared__ __align__(16) unsigned char shared[];
  const MmaBackwardTiles<T, padded> tiles(shared);
  const int D = p.head_size, head = static_cast<int>(blockIdx.y), kv_head = head / (p.heads / p.kv_heads);
  const int queries = static_cast<int>(p.q_rows), keys = static_cast<int>(p.k_rows);
  const int first_query = static_cast<int>(gridDim.x - 1 - blockIdx.x) * mma_rows;  // the longest rows first
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const T* const k = head_of<const T>(p.k, kv_head, D);
  const T* const v = head_of<const T>(p.v, kv_head, D);
  fill_ranges<mma_rows>(tiles.ranges, first_query, queries, [&](int query) { return keys_of(p, query); });
  tiles.load_row_values(p, head, first_query, 0);
  __syncthreads();
  const int last_row = min(mma_rows, queries - first_query) - 1;
  const int begin = tiles.ranges[0].begin, end = tiles.ranges[last_row].end;
  const auto start = [&](int first_key, int stage) {
    start_tile<padded>(tiles.moving_a(stage), k, p.k.stride, first_key, keys, D);
    start_tile<padded>(tiles.moving_b(stage), v, p.v.stride, first_key, keys, D);
  };

  MmaSums<padded> dq;
  clear(dq);
  start_tile<padded>(tiles.fixed_a, head_of<const T>(p.q, head, D), p.q.stride, first_query, queries, D);
  start_tile<padded>(tiles.fixed_b, head_of<const T>(p.dout, head, D), p.dout.stride, first_query, queries, D);
  if (begin < end) start(begin, 0);
  ptx::cp_async_commit_group();
  int stage = 0;
  for (int first_key = begin; first_key < end; first_key += mma_rows, stage ^= 1) {
    if (first_key + mma_rows < end) start(first_key + mma_rows, stage ^ 1);
    ptx::cp_async_commit_group();
    ptx::cp_async_wait_group<1>();
    __syncthreads();
    MmaScores scores, gradients;
    multiply_tiles<padded>(tiles.fixed_a, tiles.moving_a(stage), scores);
    multiply_tiles<padded>(tiles.fixed_b, tiles.moving_b(stage), gradients);
    const bool all = all_seen(tiles.ranges, last_row, first_key);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp * 16 + lane / 4 + 8 * half;
      const AttentionRange range = tiles.ranges[row];
      const float lse = tiles.lse[row], delta = tiles.delta[row];
#pragma unroll
      for (int n = 0; n < mma_rows / 8; ++n)
#pragma unroll
        for (int c = 2 * half; c < 2 * half + 2; ++c) {
          const int key = first_key + n * 8 + lane % 4 * 2 + c % 2;
          const bool seen = all || (key >= range.begin && key < range.end);
          float gradient = gradients[n][c];
          if (p.dropout > 0 && row <= last_row && seen) gradient *= kept(p, first_query + row, key, head);
          const float probability = exp2f(fmaf(scores[n][c], p.scale * log2_e, -lse));
          scores[n][c] = seen ? probability * (gradient - delta) : 0.0f;
        }
    }
    add_matmul<padded>(dq, scores, tiles.moving_a(stage));
    __syncthreads();  // before this stage is overwritten
  }
  ptx::cp_async_wait_group<0>();
  store_sums<padded>(dq, head_of<T>(p.dq, head, D), p.dq.stride, first_query, queries, D, p.scale, p.scale);
}

template <class T, int padded>
__global__ void __launch_bounds__(mma_threads, 2) dkv_mma_kernel(AttentionBackParams p) {
  using Tile = MmaTile<padded>;
  extern __shared__ __align__(16) unsigned char shared[];
  const MmaBackwardTiles<T, padded> tiles(shared);
  const int D = p.head_size, kv_head = static_cast<int>(blockIdx.y), group = p.heads / p.kv_heads;
  const int queries = static_cast<int>(p.q_rows), keys = static_cast<int>(p.k_rows);
  const int first_key = static_cast<int>(blockIdx.x) * mma_rows;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  fill_ranges<mma_rows>(tiles.ranges, first_key, keys, [&](int key) { return queries_of(p, key); });
  __syncthreads();
  const int last_row = min(mma_rows, keys - first_key) - 1;
  const int begin = tiles.ranges[0].begin, end = tiles.ranges[last_row].end;
  // All tiles of queries of the group's first head, then those of the next.
  const int tiles_each = begin < end ? (end - begin + mma_rows - 1) / mma_rows : 0, steps = tiles_each * group;
  const auto start = [&](int step, int stage) {
    const int head = kv_head * group + step / tiles_each, first_query = begin + step % tiles_each * mma_rows;
    start_tile<padded>(tiles.moving_a(stage), head_of<const T>(p.q, head, D), p.q.stride, first_query, queries, D);
    start_tile<padded>(tiles.moving_b(stage), head_of<const T>(p.dout, head, D), p.dout.stride, first_query, queries,
                       D);
    tiles.load_row_values(p, head, first_query, stage);
  };

  MmaSums<padded> dk, dv;
  clear(dk);
  clear(dv);
  start_tile<padded>(tiles.fixed_a, head_of<const T>(p.k, kv_head, D), p.k.stride, first_key, keys, D);
  start_tile<padded>(tiles.fixed_b, head_of<const T>(p.v, kv_head, D), p.v.stride, first_key, keys, D);
  if (steps > 0) start(0, 0);
  ptx::cp_async_commit_group();
  for (int step = 0; step < steps; ++step) {
    const int stage = step % 2;
    if (step + 1 < steps) start(step + 1, stage ^ 1);
    ptx::cp_async_commit_group();
    ptx::cp_async_wait_group<1>();
    __syncthreads();
    const int head = kv_head * group + step / tiles_each, first_query = begin + step % tiles_each * mma_rows;
    const bool all = all_seen(tiles.ranges, last_row, first_query);
    MmaScores scores, gradients;  // [key][query]
    multiply_tiles<padded>(tiles.fixed_a, tiles.moving_a(stage), scores);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const AttentionRange range = tiles.ranges[warp * 16 + lane / 4 + 8 * half];
#pragma unroll
      for (int n = 0; n < mma_rows / 8; ++n)
#pragma unroll
        for (int c = 2 * half; c < 2 * half + 2; ++c) {
          const int column = n * 8 + lane % 4 * 2 + c % 2, query = first_query + column;
          const bool seen = all || (query >= range.begin && query < range.end);
          const float exponent = fmaf(scores[n][c], p.scale * log2_e, -tiles.lse[stage * mma_rows + column]);
          scores[n][c] = seen ? exp2f(exponent) : 0.0f;
        }
    }
    multiply_tiles<padded>(tiles.fixed_b, tiles.moving_b(stage), gradients);
    if (p.dropout > 0) {  // scores are the probabilities before dropout: they are dropped for dv only
      MmaScores dropped;
#pragma unroll
      for (int n = 0; n < mma_rows / 8; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int row = warp * 16 + lane / 4 + c / 2 * 8, query = first_query + n * 8 + lane % 4 * 2 + c % 2;
          const AttentionRange range = tiles.ranges[row];
          const bool seen = row <= last_row && query >= range.begin && query < range.end;
          const float keep = seen ? kept(p, query, first_key + row, head) : 0.0f;
          dropped[n][c] = scores[n][c] * keep;
          gradients[n][c] *= keep;
        }
      add_matmul<padded>(dv, dropped, tiles.moving_b(stage));
    } else {
      add_matmul<padded>(dv, scores, tiles.moving_b(stage));
    }
#pragma unroll
    for (int n = 0; n < mma_rows / 8; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c)
        gradients[n][c] =
            scores[n][c] * (gradients[n][c] - tiles.delta[stage * mma_rows + n * 8 + lane % 4 * 2 + c % 2]);
    add_matmul<padded>(dk, gradients, tiles.moving_a(stage));
    __syncthreads();  // before this stage is overwritten
  }
  ptx::cp_async_wait_group<0>();
  store_sums<padded>(dk, head_of<T>(p.dk, kv_head, D), p.dk.stride, first_key, keys, D, p.scale, p.scale);
  store_sums<padded>(dv, head_of<T>(p.dv, kv_head, D), p.dv.stride, first_key, keys, D, 1.0f, 1.0f);
}

template <class Kernel>
cudaError_t launch_tiles(Kernel kernel, std::size_t shared, std::int64_t rows, int heads, const AttentionBackParams& p,
                         cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  if (const cudaError_t status =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
      status != cudaSuccess)
    return status;
  const dim3 grid(static_cast<unsigned>((rows + mma_rows - 1) / mma_rows), static_cast<unsigned>(heads));
  kernel<<<grid, mma_threads, shared, stream>>>(p);
  return cudaGetLastError();
}

template <class T, int padded>
cudaError_t launch_backward(const AttentionBackParams& p, cudaStream_t stream) {
  constexpr std::size_t shared = backward_shared<padded>();
  if (const cudaError_t status = launch_tiles(dq_mma_kernel<T, padded>, shared, p.q_rows, p.heads, p, stream);
      status != cudaSuccess)
    return status;
  return launch_tiles(dkv_mma_kernel<T, padded>, shared, p.k_rows, p.kv_heads, p, stream);
}

template <class T>
cudaError_t launch_backward(const AttentionBackParams& p, cudaStream_t stream) {
  return p.head_size <= 64 ? launch_backward<T, 64>(p, stream) : launch_backward<T, 128>(p, stream);
}

}  // namespace

bool mma_supports(const AttentionBackParams& p) {
  return p.scalar != Scalar::f32 && p.head_size <= 128 &&
         all_by16<__half>(p.head_size, p.q, p.k, p.v, p.dout, p.dq, p.dk, p.dv);
}

cudaError_t launch_attention_back_mma(const AttentionBackParams& params, cudaStream_t stream) {
  return params.scalar == Scalar::bf16 ? launch_backward<__nv_bfloat16>(params, stream)
                                       : launch_backward<__half>(params, stream);
}

}  // namespace tera::cuda::kernels
