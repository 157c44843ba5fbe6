// Flash attention's backward in three kernels: delta, the dot product of each row of out with its gradient; dq, a block
// per tile of queries and head; dk and dv, a block per tile of keys and kv head, over all query heads of its group. The
// last two recompute the probabilities, each for itself: so every sum is one thread's, in a fixed order.
//
// With p = exp(scale q k^T - lse) and dp = dout v^T, each masked and (dropout) times what was kept:
//   dv = p^T dout,  ds = p (dp - delta),  dq = scale ds k,  dk = scale ds^T q

#include "tera/backend/cuda/kernels/attention/attention_tile.cuh"

namespace tera::cuda::kernels {
namespace {

constexpr int delta_warps = 8;

// One warp per row and head.
template <class T>
__global__ void __launch_bounds__(delta_warps * 32) delta_kernel(AttentionBackParams p) {
  const std::int64_t index = std::int64_t{blockIdx.x} * delta_warps + threadIdx.x / 32;
  if (index >= p.q_rows * p.heads) return;
  const std::int64_t row = index / p.heads;
  const int head = static_cast<int>(index % p.heads), lane = static_cast<int>(threadIdx.x) % 32;
  const T* const out = head_of<const T>(p.out, head, p.head_size) + row * p.out.stride;
  const T* const dout = head_of<const T>(p.dout, head, p.head_size) + row * p.dout.stride;
  float sum = 0;
  for (int d = lane; d < p.head_size; d += 32) sum = fmaf(to_float(out[d]), to_float(dout[d]), sum);
  sum = warp_sum(sum);
  if (lane == 0) p.delta[head * p.q_rows + row] = sum;
}

template <int padded>
constexpr std::size_t backward_shared() {
  using Tile = AttentionTile<padded>;
  return (4 * Tile::size + Tile::score_size + 2 * Tile::rows) * sizeof(float) + Tile::rows * sizeof(AttentionRange);
}

// Shared memory of dq_kernel and dkv_kernel. fixed: the rows whose gradients the block computes; moving: the others.
template <int padded>
struct BackwardTiles {
  using Tile = AttentionTile<padded>;
  float *fixed_a, *fixed_b, *moving_a, *moving_b, *scores, *lse, *delta;
  AttentionRange* ranges;  // ranges of the fixed rows

  __device__ explicit BackwardTiles(unsigned char* shared) {
    fixed_a = reinterpret_cast<float*>(shared);
    fixed_b = fixed_a + Tile::size;
    moving_a = fixed_b + Tile::size;
    moving_b = moving_a + Tile::size;
    scores = moving_b + Tile::size;
    lse = scores + Tile::score_size;
    delta = lse + Tile::rows;
    ranges = reinterpret_cast<AttentionRange*>(delta + Tile::rows);
  }

  // lse and delta of a tile of queries; 0 where there is no row.
  __device__ void load_row_values(const AttentionBackParams& p, int head, int first_query) {
    const int i = static_cast<int>(threadIdx.x);
    if (i >= Tile::rows) return;
    const std::int64_t at = head * p.q_rows + first_query + i;
    const bool there = first_query + i < p.q_rows;
    lse[i] = there ? p.lse[at] : 0.0f;
    delta[i] = there ? p.delta[at] : 0.0f;
  }
};

template <class T, int padded>
__global__ void __launch_bounds__(attention_threads, 1) dq_kernel(AttentionBackParams p, bool by16) {
  using Tile = AttentionTile<padded>;
  extern __shared__ __align__(16) unsigned char shared[];
  BackwardTiles<padded> tiles(shared);
  const int D = p.head_size, head = static_cast<int>(blockIdx.y), kv_head = head / (p.heads / p.kv_heads);
  const int queries = static_cast<int>(p.q_rows), keys = static_cast<int>(p.k_rows);
  const int first_query = static_cast<int>(gridDim.x - 1 - blockIdx.x) * Tile::rows;  // the longest rows first
  const int tx = static_cast<int>(threadIdx.x) % 16, ty = static_cast<int>(threadIdx.x) / 16;
  const T* const k = head_of<const T>(p.k, kv_head, D);
  const T* const v = head_of<const T>(p.v, kv_head, D);

  fill_ranges<Tile::rows>(tiles.ranges, first_query, queries, [&](int query) { return keys_of(p, query); });
  tiles.load_row_values(p, head, first_query);
  load_tile<padded>(tiles.fixed_a, head_of<const T>(p.q, head, D), p.q.stride, first_query, queries, D, by16);
  load_tile<padded>(tiles.fixed_b, head_of<const T>(p.dout, head, D), p.dout.stride, first_query, queries, D, by16);
  __syncthreads();
  const int last_row = min(Tile::rows, queries - first_query) - 1;
  const int begin = tiles.ranges[0].begin, end = tiles.ranges[last_row].end;

  RowSums<padded> dq;
  dq.clear();
  for (int first_key = begin; first_key < end; first_key += Tile::rows) {
    load_tile<padded>(tiles.moving_a, k, p.k.stride, first_key, keys, D, by16);
    load_tile<padded>(tiles.moving_b, v, p.v.stride, first_key, keys, D, by16);
    __syncthreads();
    float score[Tile::each][Tile::each], gradient[Tile::each][Tile::each];
    multiply_rows<padded>(tiles.fixed_a, tiles.moving_a, score);
    multiply_rows<padded>(tiles.fixed_b, tiles.moving_b, gradient);
#pragma unroll
    for (int i = 0; i < Tile::each; ++i) {
      const int row = ty * Tile::each + i;
      const AttentionRange range = tiles.ranges[row];
#pragma unroll
      for (int j = 0; j < Tile::each; ++j) {
        const int key = first_key + tx + 16 * j;
        const bool seen = key >= range.begin && key < range.end;
        if (p.dropout > 0 && seen) gradient[i][j] *= kept(p, first_query + row, key, head);
        const float probability = expf(score[i][j] * p.scale - tiles.lse[row]);
        score[i][j] = seen ? probability * (gradient[i][j] - tiles.delta[row]) : 0.0f;
      }
    }
    store_scores<padded>(tiles.scores, score);
    __syncthreads();
    dq.add_matmul(tiles.scores, tiles.moving_a);
    __syncthreads();  // before the tiles are overwritten
  }
  float factor[Tile::each];
#pragma unroll
  for (int i = 0; i < Tile::each; ++i) factor[i] = p.scale;
  dq.store_rows(head_of<T>(p.dq, head, D), p.dq.stride, first_query, queries, D, by16, factor);
}

template <class T, int padded>
__global__ void __launch_bounds__(attention_threads, 1) dkv_kernel(AttentionBackParams p, bool by16) {
  using Tile = AttentionTile<padded>;
  extern __shared__ __align__(16) unsigned char shared[];
  BackwardTiles<padded> tiles(shared);
  const int D = p.head_size, kv_head = static_cast<int>(blockIdx.y), group = p.heads / p.kv_heads;
  const int queries = static_cast<int>(p.q_rows), keys = static_cast<int>(p.k_rows);
  const int first_key = static_cast<int>(blockIdx.x) * Tile::rows;
  const int tx = static_cast<int>(threadIdx.x) % 16, ty = static_cast<int>(threadIdx.x) / 16;

  fill_ranges<Tile::rows>(tiles.ranges, first_key, keys, [&](int key) { return queries_of(p, key); });
  load_tile<padded>(tiles.fixed_a, head_of<const T>(p.k, kv_head, D), p.k.stride, first_key, keys, D, by16);
  load_tile<padded>(tiles.fixed_b, head_of<const T>(p.v, kv_head, D), p.v.stride, first_key, keys, D, by16);
  __syncthreads();
  const int last_row = min(Tile::rows, keys - first_key) - 1;
  const int begin = tiles.ranges[0].begin, end = tiles.ranges[last_row].end;

  RowSums<padded> dk, dv;
  dk.clear();
  dv.clear();
  for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    const T* const q = head_of<const T>(p.q, head, D);
    const T* const dout = head_of<const T>(p.dout, head, D);
    for (int first_query = begin; first_query < end; first_query += Tile::rows) {
      load_tile<padded>(tiles.moving_a, q, p.q.stride, first_query, queries, D, by16);
      load_tile<padded>(tiles.moving_b, dout, p.dout.stride, first_query, queries, D, by16);
      tiles.load_row_values(p, head, first_query);
      __syncthreads();
      float score[Tile::each][Tile::each], gradient[Tile::each][Tile::each];  // [key][query]
      multiply_rows<padded>(tiles.fixed_a, tiles.moving_a, score);
      multiply_rows<padded>(tiles.fixed_b, tiles.moving_b, gradient);
#pragma unroll
      for (int i = 0; i < Tile::each; ++i) {
        const int row = ty * Tile::each + i;
        const AttentionRange range = tiles.ranges[row];
#pragma unroll
        for (int j = 0; j < Tile::each; ++j) {
          const int column = tx + 16 * j, query = first_query + column;
          const bool seen = query >= range.begin && query < range.end;
          const float keep = p.dropout > 0 && seen ? kept(p, query, first_key + row, head) : 1.0f;
          const float probability = seen ? expf(score[i][j] * p.scale - tiles.lse[column]) : 0.0f;
          score[i][j] = probability * keep;
          gradient[i][j] = seen ? probability * (gradient[i][j] * keep - tiles.delta[column]) : 0.0f;
        }
      }
      store_scores<padded>(tiles.scores, score);
      __syncthreads();
      dv.add_matmul(tiles.scores, tiles.moving_b);
      __syncthreads();
      store_scores<padded>(tiles.scores, gradient);
      __syncthreads();
      dk.add_matmul(tiles.scores, tiles.moving_a);
      __syncthreads();  // before the tiles are overwritten
    }
  }
  float one[Tile::each], scale[Tile::each];
#pragma unroll
  for (int i = 0; i < Tile::each; ++i) {
    one[i] = 1;
    scale[i] = p.scale;
  }
  dk.store_rows(head_of<T>(p.dk, kv_head, D), p.dk.stride, first_key, keys, D, by16, scale);
  dv.store_rows(head_of<T>(p.dv, kv_head, D), p.dv.stride, first_key, keys, D, by16, one);
}

template <class Kernel>
cudaError_t launch_tiles(Kernel kernel, std::size_t shared, dim3 grid, const AttentionBackParams& p, bool by16,
                         cudaStream_t stream) {
  if (grid.x == 0) return cudaSuccess;
  if (const cudaError_t status =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
      status != cudaSuccess)
    return status;
  kernel<<<grid, attention_threads, shared, stream>>>(p, by16);
  return cudaGetLastError();
}

template <class T>
cudaError_t launch_delta(const AttentionBackParams& p, cudaStream_t stream) {
  const std::int64_t blocks = (p.q_rows * p.heads + delta_warps - 1) / delta_warps;
  if (blocks == 0) return cudaSuccess;
  delta_kernel<T><<<static_cast<unsigned>(blocks), delta_warps * 32, 0, stream>>>(p);
  return cudaGetLastError();
}

template <class T, int padded>
cudaError_t launch_backward(const AttentionBackParams& p, cudaStream_t stream) {
  constexpr int rows = AttentionTile<padded>::rows;
  constexpr std::size_t shared = backward_shared<padded>();
  const bool by16 = all_by16<T>(p.head_size, p.q, p.k, p.v, p.dout, p.dq, p.dk, p.dv);
  const auto tiles = [](std::int64_t count) { return static_cast<unsigned>((count + rows - 1) / rows); };
  const dim3 q_grid(tiles(p.q_rows), static_cast<unsigned>(p.heads));
  if (const cudaError_t status = launch_tiles(dq_kernel<T, padded>, shared, q_grid, p, by16, stream);
      status != cudaSuccess)
    return status;
  const dim3 k_grid(tiles(p.k_rows), static_cast<unsigned>(p.kv_heads));
  return launch_tiles(dkv_kernel<T, padded>, shared, k_grid, p, by16, stream);
}

}  // namespace

cudaError_t launch_attention_back(const AttentionBackParams& params, cudaStream_t stream) {
  return with_type(params.scalar, [&](auto zero) {
    using T = decltype(zero);
    if (const cudaError_t status = launch_delta<T>(params, stream); status != cudaSuccess) return status;
    if (!params.exact && mma_supports(params)) return launch_attention_back_mma(params, stream);
    return with_head_size(params.head_size,
                          [&](auto padded) { return launch_backward<T, decltype(padded)::value>(params, stream); });
  });
}

}  // namespace tera::cuda::kernels
