#pragma once
// What the flash attention kernels share: masks as key ranges, tiles in shared memory, matmuls of tiles, dropout.
//
// A tile is Tile::rows rows of one head in fp32, Tile::stride floats apart: zeros where there is no row or no channel.
// 256 threads work on it as 16 x 16: thread (ty, tx) owns rows ty * each .. and columns tx, tx + 16, .. of a tile of
// scores, and of a tile of rows the same rows and channels tx * 4 + 64 * m .. + 3.

#include <cmath>
#include <type_traits>

#include "tera/backend/cuda/kernels/attention/attention.cuh"
#include "tera/backend/cuda/kernels/philox.cuh"

namespace tera::cuda::kernels {

constexpr int attention_threads = 256;

template <int padded>  // head size rounded up to 64, 128 or 256
struct AttentionTile {
  static constexpr int rows = padded > 128 ? 32 : 64;  // so that four tiles fit shared memory
  static constexpr int each = rows / 16;               // rows of a thread
  static constexpr int parts = padded / 64;            // runs of four channels of a thread
  static constexpr int stride = padded + 4;            // 16 bytes more: neighbouring rows lie in other banks
  static constexpr int size = rows * stride;
  static constexpr int score_stride = rows + 4;
  static constexpr int score_size = rows * score_stride;
};

struct AttentionRange {
  int begin = 0, end = 0;
};

// The sequence that holds a row of q (or of k), and its rows in both.
struct AttentionSequence {
  int q_begin, q_end, k_begin, k_end;
};

// Number of the document that holds a row: the last one that begins at or before it (empty ones before it also do).
__device__ inline int find_document(const int* offsets, int documents, int row) {
  int low = 0, high = documents - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (offsets[middle] <= row)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

__device__ inline AttentionSequence sequence_at(const AttentionParams& p, int index) {
  if (p.q_offsets) return {p.q_offsets[index], p.q_offsets[index + 1], p.k_offsets[index], p.k_offsets[index + 1]};
  const int queries = static_cast<int>(p.q_rows / p.sequences), keys = static_cast<int>(p.k_rows / p.sequences);
  return {index * queries, (index + 1) * queries, index * keys, (index + 1) * keys};
}

// The first of rows [begin, end) at or after this position.
__device__ inline int first_at(const int* positions, int begin, int end, std::int64_t position) {
  while (begin < end) {
    const int middle = begin + (end - begin) / 2;
    if (positions[middle] < position)
      begin = middle + 1;
    else
      end = middle;
  }
  return begin;
}

// Keys that a query sees: rows of k. Both ends grow with the query, over sequences too. Causal: the last query sees
// the last key; with positions each query sees the keys up to its own.
__device__ inline AttentionRange keys_of(const AttentionParams& p, int query) {
  const int index =
      p.q_offsets ? find_document(p.q_offsets, p.sequences, query) : query / static_cast<int>(p.q_rows / p.sequences);
  const AttentionSequence s = sequence_at(p, index);
  if (!p.causal) return {s.k_begin, s.k_end};
  if (p.q_positions) {
    const std::int64_t position = p.q_positions[query];
    const int end = first_at(p.k_positions, s.k_begin, s.k_end, position + 1);
    return {p.window > 0 ? first_at(p.k_positions, s.k_begin, end, position + 1 - p.window) : s.k_begin, end};
  }
  const int end = s.k_end - (s.q_end - 1 - query);  // may lie before the first key: no key is seen
  AttentionRange range{s.k_begin, max(end, s.k_begin)};
  if (p.window > 0 && end - p.window > range.begin) range.begin = static_cast<int>(end - p.window);
  return range;
}

// Queries that see a key: rows of q.
__device__ inline AttentionRange queries_of(const AttentionParams& p, int key) {
  const int index =
      p.k_offsets ? find_document(p.k_offsets, p.sequences, key) : key / static_cast<int>(p.k_rows / p.sequences);
  const AttentionSequence s = sequence_at(p, index);
  if (!p.causal) return {s.q_begin, s.q_end};
  if (p.q_positions) {
    const std::int64_t position = p.k_positions[key];
    const int from = first_at(p.q_positions, s.q_begin, s.q_end, position);
    return {from, p.window > 0 ? first_at(p.q_positions, from, s.q_end, position + p.window) : s.q_end};
  }
  const int first = s.q_end - (s.k_end - key);  // the query that stands at this key
  AttentionRange range{max(first, s.q_begin), s.q_end};
  if (p.window > 0 && first + p.window < range.end) range.end = max(static_cast<int>(first + p.window), range.begin);
  return range;
}

// Fills the ranges of a tile's `rows` rows from first on: those beyond `count` see nothing.
template <int rows, class Ranges>
__device__ inline void fill_ranges(AttentionRange* shared, int first, int count, const Ranges& range_of) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < rows) shared[i] = first + i < count ? range_of(first + i) : AttentionRange{0, 0};
}

// tile = rows [first, first + rows) of one head. `data` points at the head's part of row 0; rows from `count` on, and
// channels from D on, become zero. by16: 16 bytes at a time, if the caller has found everything aligned.
template <int padded, class T>
__device__ inline void load_tile(float* tile, const T* data, std::int64_t stride, int first, int count, int D,
                                 bool by16) {
  using Tile = AttentionTile<padded>;
  constexpr int N = Pack<T>::size;
  if (by16) {
    constexpr int packs = Tile::rows * (padded / N);
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < packs; i += attention_threads) {
      const int row = i / (padded / N), d = i % (padded / N) * N;
      Pack<T> pack{};
      if (first + row < count && d < D) pack = load<N>(data + std::int64_t{first + row} * stride + d);
#pragma unroll
      for (int e = 0; e < N; e += 4)
        *reinterpret_cast<float4*>(tile + row * Tile::stride + d + e) =
            make_float4(to_float(pack.value[e]), to_float(pack.value[e + 1]), to_float(pack.value[e + 2]),
                        to_float(pack.value[e + 3]));
    }
    return;
  }
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < Tile::rows * padded; i += attention_threads) {
    const int row = i / padded, d = i % padded;
    const bool there = first + row < count && d < D;
    tile[row * Tile::stride + d] = there ? to_float(data[std::int64_t{first + row} * stride + d]) : 0.0f;
  }
}

// A thread's accumulators of a tile of rows.
template <int padded>
struct RowSums {
  using Tile = AttentionTile<padded>;
  float value[Tile::each][Tile::parts][4];

  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < Tile::each; ++i)
#pragma unroll
      for (int m = 0; m < Tile::parts; ++m)
#pragma unroll
        for (int c = 0; c < 4; ++c) value[i][m][c] = 0;
  }

  // value += scores * tile: scores [rows, rows], tile [rows, padded], both in shared memory.
  __device__ void add_matmul(const float* scores, const float* tile) {
    const int tx = static_cast<int>(threadIdx.x) % 16, ty = static_cast<int>(threadIdx.x) / 16;
#pragma unroll 2
    for (int k = 0; k < Tile::rows; k += 4) {
      float4 weight[Tile::each];
#pragma unroll
      for (int i = 0; i < Tile::each; ++i)
        weight[i] = *reinterpret_cast<const float4*>(scores + (ty * Tile::each + i) * Tile::score_stride + k);
#pragma unroll
      for (int s = 0; s < 4; ++s)
#pragma unroll
        for (int m = 0; m < Tile::parts; ++m) {
          const float4 x = *reinterpret_cast<const float4*>(tile + (k + s) * Tile::stride + tx * 4 + 64 * m);
#pragma unroll
          for (int i = 0; i < Tile::each; ++i) {
            const float w = s == 0 ? weight[i].x : s == 1 ? weight[i].y : s == 2 ? weight[i].z : weight[i].w;
            value[i][m][0] = fmaf(w, x.x, value[i][m][0]);
            value[i][m][1] = fmaf(w, x.y, value[i][m][1]);
            value[i][m][2] = fmaf(w, x.z, value[i][m][2]);
            value[i][m][3] = fmaf(w, x.w, value[i][m][3]);
          }
        }
    }
  }

  // Stores rows [first, first + rows) below `count` of one head, row i times factor[i].
  template <class T>
  __device__ void store_rows(T* data, std::int64_t stride, int first, int count, int D, bool by16,
                             const float (&factor)[Tile::each]) const {
    const int tx = static_cast<int>(threadIdx.x) % 16, ty = static_cast<int>(threadIdx.x) / 16;
#pragma unroll
    for (int i = 0; i < Tile::each; ++i) {
      const int row = first + ty * Tile::each + i;
      if (row >= count) continue;
#pragma unroll
      for (int m = 0; m < Tile::parts; ++m) {
        const int d = tx * 4 + 64 * m;
        Pack<T, 4> pack;
#pragma unroll
        for (int c = 0; c < 4; ++c) pack.value[c] = from_float<T>(value[i][m][c] * factor[i]);
        T* const to = data + std::int64_t{row} * stride + d;
        if (by16) {
          if (d < D) store(to, pack);  // D is a multiple of 4
        } else {
#pragma unroll
          for (int c = 0; c < 4; ++c)
            if (d + c < D) to[c] = pack.value[c];
        }
      }
    }
  }
};

// result[i][j] = dot product of row ty * each + i of a with row tx + 16 * j of b.
template <int padded>
__device__ inline void multiply_rows(const float* a, const float* b,
                                     float (&result)[AttentionTile<padded>::each][AttentionTile<padded>::each]) {
  using Tile = AttentionTile<padded>;
  constexpr int each = Tile::each;
  const int tx = static_cast<int>(threadIdx.x) % 16, ty = static_cast<int>(threadIdx.x) / 16;
#pragma unroll
  for (int i = 0; i < each; ++i)
#pragma unroll
    for (int j = 0; j < each; ++j) result[i][j] = 0;
#pragma unroll 4
  for (int d = 0; d < padded; d += 4) {
    float4 x[each], y[each];
#pragma unroll
    for (int i = 0; i < each; ++i) {
      x[i] = *reinterpret_cast<const float4*>(a + (ty * each + i) * Tile::stride + d);
      y[i] = *reinterpret_cast<const float4*>(b + (tx + 16 * i) * Tile::stride + d);
    }
#pragma unroll
    for (int i = 0; i < each; ++i)
#pragma unroll
      for (int j = 0; j < each; ++j) {
        result[i][j] = fmaf(x[i].x, y[j].x, result[i][j]);
        result[i][j] = fmaf(x[i].y, y[j].y, result[i][j]);
        result[i][j] = fmaf(x[i].z, y[j].z, result[i][j]);
        result[i][j] = fmaf(x[i].w, y[j].w, result[i][j]);
      }
  }
}

// Stores scores[row][column] of this thread to shared memory.
template <int padded>
__device__ inline void store_scores(float* scores,
                                    const float (&value)[AttentionTile<padded>::each][AttentionTile<padded>::each]) {
  using Tile = AttentionTile<padded>;
  const int tx = static_cast<int>(threadIdx.x) % 16, ty = static_cast<int>(threadIdx.x) / 16;
#pragma unroll
  for (int i = 0; i < Tile::each; ++i)
#pragma unroll
    for (int j = 0; j < Tile::each; ++j) scores[(ty * Tile::each + i) * Tile::score_stride + tx + 16 * j] = value[i][j];
}

// Reductions over the 16 threads that share a row.
__device__ inline float row_max(float value) {
#pragma unroll
  for (int lane = 8; lane > 0; lane /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, lane));
  return value;
}
__device__ inline float row_sum(float value) {
#pragma unroll
  for (int lane = 8; lane > 0; lane /= 2) value += __shfl_xor_sync(0xffffffffu, value, lane);
  return value;
}

// Dropout's factor: 0, or 1 / (1 - rate). The draw for (query, key, head) equals that on the CPU, wherever it is
// computed.
__device__ inline float kept(const AttentionParams& p, int query, int key, int head) {
  const auto q_id = static_cast<std::uint64_t>(p.q_ids[query]), k_id = static_cast<std::uint64_t>(p.k_ids[key]);
  const std::uint64_t high = k_id / 4 + (static_cast<std::uint64_t>(p.first_head + head) << 48);
  const uint4 words = philox(p.key, q_id, high);
  const auto word = static_cast<int>(k_id % 4);
  const std::uint32_t bits = word == 0 ? words.x : word == 1 ? words.y : word == 2 ? words.z : words.w;
  return uniform_from_bits(bits) >= p.dropout ? 1.0f / (1.0f - p.dropout) : 0.0f;
}

// The address of the head in row 0.
template <class T>
__device__ inline T* head_of(const AttentionRows& rows, int head, int D) {
  return static_cast<T*>(rows.data) + std::int64_t{head} * D;
}

// Host side ------------------------------------------------------------------------------------------------------

// Whether all of these rows can be moved 16 bytes at a time.
template <class T, class... Rows>
bool all_by16(int D, const Rows&... rows) {
  return D * static_cast<int>(sizeof(T)) % 16 == 0 && (aligned16<T>(rows.data, rows.stride) && ...);
}

// launch(padded) with the padded head size as a constant.
template <class Launch>
cudaError_t with_head_size(int D, const Launch& launch) {
  if (D <= 64) return launch(std::integral_constant<int, 64>{});
  if (D <= 128) return launch(std::integral_constant<int, 128>{});
  if (D <= 256) return launch(std::integral_constant<int, 256>{});
  return cudaErrorInvalidValue;
}

}  // namespace tera::cuda::kernels
