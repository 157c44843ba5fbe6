// Flash attention's forward on tensor cores (mma.sync); see attention.cu for the method and attention_mma.cuh for the
// layout.

#include "tera/backend/cuda/kernels/attention/attention_mma.cuh"

namespace tera::cuda::kernels {
namespace {

// The maximum, in units of log 2, and the sum of the two rows of a thread.
struct MmaSoftmax {
  float maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};

  // Scores become probabilities relative to the new maximum; sums so far are brought to it.
  template <int padded>
  __device__ void step(float scale, MmaScores& scores, MmaSums<padded>& sums) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float tile_maximum = -INFINITY;
#pragma unroll
      for (int n = 0; n < mma_rows / 8; ++n)
        tile_maximum = fmaxf(tile_maximum, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
      const float now = fmaxf(maximum[half], quad_max(tile_maximum) * scale);
      const float base = now == -INFINITY ? 0.0f : now;  // no key yet: all exponents stay -inf
      const float shrink = exp2f(maximum[half] - base);
      float tile_sum = 0;
#pragma unroll
      for (int n = 0; n < mma_rows / 8; ++n)
#pragma unroll
        for (int c = 2 * half; c < 2 * half + 2; ++c) {
          scores[n][c] = exp2f(fmaf(scores[n][c], scale, -base));
          tile_sum += scores[n][c];
        }
      maximum[half] = now;
      sum[half] = sum[half] * shrink + quad_sum(tile_sum);
#pragma unroll
      for (int n = 0; n < MmaTile<padded>::runs; ++n) {
        sums[n][2 * half] *= shrink;
        sums[n][2 * half + 1] *= shrink;
      }
    }
  }
};

// Sets masked scores to -inf.
__device__ void mask_scores(const AttentionRange* ranges, int first_key, MmaScores& scores) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const AttentionRange range = ranges[warp * 16 + lane / 4 + 8 * half];
#pragma unroll
    for (int n = 0; n < mma_rows / 8; ++n)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int key = first_key + n * 8 + lane % 4 * 2 + c;
        if (key < range.begin || key >= range.end) scores[n][2 * half + c] = -INFINITY;
      }
  }
}

// Applies dropout to the probabilities.
__device__ void drop_scores(const AttentionParams& p, const AttentionRange* ranges, int first_query, int first_key,
                            int head, MmaScores& scores) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warp * 16 + lane / 4 + 8 * half;
    const AttentionRange range = ranges[row];
#pragma unroll
    for (int n = 0; n < mma_rows / 8; ++n)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int key = first_key + n * 8 + lane % 4 * 2 + c;
        if (key >= range.begin && key < range.end) scores[n][2 * half + c] *= kept(p, first_query + row, key, head);
      }
  }
}

template <int padded>
constexpr std::size_t forward_shared() {
  return 5 * MmaTile<padded>::size * 2 + mma_rows * sizeof(AttentionRange);
}

template <class T, int padded>
__global__ void __launch_bounds__(mma_threads, 2) attention_mma_kernel(AttentionParams p) {
  using Tile = MmaTile<padded>;
  extern __shared__ __align__(16) unsigned char shared[];
  T* const q_tile = reinterpret_cast<T*>(shared);
  T* const k_tiles = q_tile + Tile::size;  // double-buffered by cp.async, as are the tiles of v
  T* const v_tiles = k_tiles + 2 * Tile::size;
  auto* const ranges = reinterpret_cast<AttentionRange*>(v_tiles + 2 * Tile::size);

  const int D = p.head_size, head = static_cast<int>(blockIdx.y), kv_head = head / (p.heads / p.kv_heads);
  const int queries = static_cast<int>(p.q_rows), keys = static_cast<int>(p.k_rows);
  const int first_query = static_cast<int>(gridDim.x - 1 - blockIdx.x) * mma_rows;  // the longest rows first
  const T* const k = head_of<const T>(p.k, kv_head, D);
  const T* const v = head_of<const T>(p.v, kv_head, D);
  fill_ranges<mma_rows>(ranges, first_query, queries, [&](int query) { return keys_of(p, query); });
  __syncthreads();
  const int last_row = min(mma_rows, queries - first_query) - 1;
  const int begin = ranges[0].begin, end = ranges[last_row].end;
  const auto start = [&](int first_key, int stage) {
    start_tile<padded>(k_tiles + stage * Tile::size, k, p.k.stride, first_key, keys, D);
    start_tile<padded>(v_tiles + stage * Tile::size, v, p.v.stride, first_key, keys, D);
  };

  MmaSoftmax softmax;
  MmaSums<padded> sums;
  clear(sums);
  start_tile<padded>(q_tile, head_of<const T>(p.q, head, D), p.q.stride, first_query, queries, D);
  if (begin < end) start(begin, 0);
  ptx::cp_async_commit_group();
  int stage = 0;
  for (int first_key = begin; first_key < end; first_key += mma_rows, stage ^= 1) {
    if (first_key + mma_rows < end) start(first_key + mma_rows, stage ^ 1);
    ptx::cp_async_commit_group();  // empty at the end, so that the group before it is always the last but one
    ptx::cp_async_wait_group<1>();
    __syncthreads();
    MmaScores scores;
    multiply_tiles<padded>(q_tile, k_tiles + stage * Tile::size, scores);
    if (!all_seen(ranges, last_row, first_key)) mask_scores(ranges, first_key, scores);
    softmax.step<padded>(p.scale * log2_e, scores, sums);
    if (p.dropout > 0) drop_scores(p, ranges, first_query, first_key, head, scores);
    add_matmul<padded>(sums, scores, v_tiles + stage * Tile::size);
    __syncthreads();  // before this stage is overwritten
  }
  ptx::cp_async_wait_group<0>();

  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  float factor[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int query = first_query + warp * 16 + lane / 4 + 8 * half;
    const bool none = softmax.sum[half] == 0;
    factor[half] = none ? 0.0f : 1.0f / softmax.sum[half];
    if (lane % 4 == 0 && query < queries)
      p.lse[std::int64_t{head} * p.q_rows + query] =
          none ? -INFINITY : (softmax.maximum[half] + log2f(softmax.sum[half])) * ln_2;
  }
  store_sums<padded>(sums, head_of<T>(p.out, head, D), p.out.stride, first_query, queries, D, factor[0], factor[1]);
}

template <class T, int padded>
cudaError_t launch_forward(const AttentionParams& p, cudaStream_t stream) {
  constexpr std::size_t shared = forward_shared<padded>();
  const auto kernel = attention_mma_kernel<T, padded>;
  if (const cudaError_t status =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
      status != cudaSuccess)
    return status;
  const dim3 grid(static_cast<unsigned>((p.q_rows + mma_rows - 1) / mma_rows), static_cast<unsigned>(p.heads));
  kernel<<<grid, mma_threads, shared, stream>>>(p);
  return cudaGetLastError();
}

template <class T>
cudaError_t launch_forward(const AttentionParams& p, cudaStream_t stream) {
  return p.head_size <= 64 ? launch_forward<T, 64>(p, stream) : launch_forward<T, 128>(p, stream);
}

}  // namespace

bool mma_supports(const AttentionParams& p) {
  return p.scalar != Scalar::f32 && p.head_size <= 128 && all_by16<__half>(p.head_size, p.q, p.k, p.v, p.out);
}

cudaError_t launch_attention_mma(const AttentionParams& params, cudaStream_t stream) {
  if (params.q_rows == 0) return cudaSuccess;
  return params.scalar == Scalar::bf16 ? launch_forward<__nv_bfloat16>(params, stream)
                                       : launch_forward<__half>(params, stream);
}

}  // namespace tera::cuda::kernels
