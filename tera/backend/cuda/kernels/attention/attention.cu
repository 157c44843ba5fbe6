// Flash attention's forward in fp32: one block per tile of queries and head goes over the keys that these see, with a
// running maximum and sum of each row (online softmax). A tile may hold queries of several sequences: each row has a
// range of keys of its own.

#include "tera/backend/cuda/kernels/attention/attention_tile.cuh"

namespace tera::cuda::kernels {
namespace {

template <int padded>
constexpr std::size_t forward_shared() {
  using Tile = AttentionTile<padded>;
  return (3 * Tile::size + Tile::score_size) * sizeof(float) + Tile::rows * sizeof(AttentionRange);
}

// The online softmax: makes a tile of dot products probabilities relative to the new maximum, and rescales the rows'
// sums to it.
template <int padded>
struct RunningSoftmax {
  using Tile = AttentionTile<padded>;
  float maximum[Tile::each], sum[Tile::each];

  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < Tile::each; ++i) {
      maximum[i] = -INFINITY;
      sum[i] = 0;
    }
  }

  __device__ void step(const AttentionParams& p, const AttentionRange* ranges, int first_query, int first_key, int head,
                       float (&score)[Tile::each][Tile::each], RowSums<padded>& sums) {
    const int tx = static_cast<int>(threadIdx.x) % 16, ty = static_cast<int>(threadIdx.x) / 16;
#pragma unroll
    for (int i = 0; i < Tile::each; ++i) {
      const int row = ty * Tile::each + i;
      const AttentionRange range = ranges[row];
      float tile_maximum = -INFINITY;
#pragma unroll
      for (int j = 0; j < Tile::each; ++j) {
        const int key = first_key + tx + 16 * j;
        const bool seen = key >= range.begin && key < range.end;
        score[i][j] = seen ? score[i][j] * p.scale : -INFINITY;
        tile_maximum = fmaxf(tile_maximum, score[i][j]);  // a NaN is left out here and comes back through exp
      }
      const float now = fmaxf(maximum[i], row_max(tile_maximum));
      const float base = now == -INFINITY ? 0.0f : now;  // no key yet: all exponents stay -inf
      const float shrink = expf(maximum[i] - base);
      float tile_sum = 0;
#pragma unroll
      for (int j = 0; j < Tile::each; ++j) {
        const int key = first_key + tx + 16 * j;
        float probability = expf(score[i][j] - base);
        tile_sum += probability;
        if (p.dropout > 0 && key >= range.begin && key < range.end)
          probability *= kept(p, first_query + row, key, head);
        score[i][j] = probability;
      }
      maximum[i] = now;
      sum[i] = sum[i] * shrink + row_sum(tile_sum);
#pragma unroll
      for (int m = 0; m < Tile::parts; ++m)
#pragma unroll
        for (int c = 0; c < 4; ++c) sums.value[i][m][c] *= shrink;
    }
  }
};

template <class T, int padded>
__global__ void __launch_bounds__(attention_threads, 1) attention_kernel(AttentionParams p, bool by16) {
  using Tile = AttentionTile<padded>;
  extern __shared__ __align__(16) unsigned char shared[];
  float* const q_tile = reinterpret_cast<float*>(shared);
  float* const k_tile = q_tile + Tile::size;
  float* const v_tile = k_tile + Tile::size;
  float* const scores = v_tile + Tile::size;
  auto* const ranges = reinterpret_cast<AttentionRange*>(scores + Tile::score_size);

  const int D = p.head_size, head = static_cast<int>(blockIdx.y), kv_head = head / (p.heads / p.kv_heads);
  const int queries = static_cast<int>(p.q_rows), keys = static_cast<int>(p.k_rows);
  // Under a causal mask the last queries have most to do: they come first.
  const int first_query = static_cast<int>(gridDim.x - 1 - blockIdx.x) * Tile::rows;
  const T* const k = head_of<const T>(p.k, kv_head, D);
  const T* const v = head_of<const T>(p.v, kv_head, D);

  fill_ranges<Tile::rows>(ranges, first_query, queries, [&](int query) { return keys_of(p, query); });
  load_tile<padded>(q_tile, head_of<const T>(p.q, head, D), p.q.stride, first_query, queries, D, by16);
  __syncthreads();
  const int last_row = min(Tile::rows, queries - first_query) - 1;
  const int begin = ranges[0].begin, end = ranges[last_row].end;

  RunningSoftmax<padded> softmax;
  RowSums<padded> sums;
  softmax.clear();
  sums.clear();
  for (int first_key = begin; first_key < end; first_key += Tile::rows) {
    load_tile<padded>(k_tile, k, p.k.stride, first_key, keys, D, by16);
    load_tile<padded>(v_tile, v, p.v.stride, first_key, keys, D, by16);
    __syncthreads();
    float score[Tile::each][Tile::each];
    multiply_rows<padded>(q_tile, k_tile, score);
    softmax.step(p, ranges, first_query, first_key, head, score, sums);
    store_scores<padded>(scores, score);
    __syncthreads();
    sums.add_matmul(scores, v_tile);
    __syncthreads();  // before the tiles are overwritten
  }

  const int tx = static_cast<int>(threadIdx.x) % 16, ty = static_cast<int>(threadIdx.x) / 16;
  float factor[Tile::each];
#pragma unroll
  for (int i = 0; i < Tile::each; ++i) {
    const int query = first_query + ty * Tile::each + i;
    const bool none = softmax.sum[i] == 0;
    factor[i] = none ? 0.0f : 1.0f / softmax.sum[i];
    if (tx == 0 && query < queries)
      p.lse[std::int64_t{head} * p.q_rows + query] = none ? -INFINITY : softmax.maximum[i] + logf(softmax.sum[i]);
  }
  sums.store_rows(head_of<T>(p.out, head, D), p.out.stride, first_query, queries, D, by16, factor);
}

template <class T, int padded>
cudaError_t launch_forward(const AttentionParams& p, cudaStream_t stream) {
  constexpr std::size_t shared = forward_shared<padded>();
  const auto kernel = attention_kernel<T, padded>;
  if (const cudaError_t status =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
      status != cudaSuccess)
    return status;
  const std::int64_t tiles = (p.q_rows + AttentionTile<padded>::rows - 1) / AttentionTile<padded>::rows;
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(p.heads));
  kernel<<<grid, attention_threads, shared, stream>>>(p, all_by16<T>(p.head_size, p.q, p.k, p.v, p.out));
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_attention(const AttentionParams& params, cudaStream_t stream) {
  if (params.q_rows == 0) return cudaSuccess;
  if (!params.exact && mma_supports(params)) return launch_attention_mma(params, stream);
  return with_type(params.scalar, [&](auto zero) {
    using T = decltype(zero);
    return with_head_size(params.head_size,
                          [&](auto padded) { return launch_forward<T, decltype(padded)::value>(params, stream); });
  });
}

}  // namespace tera::cuda::kernels
