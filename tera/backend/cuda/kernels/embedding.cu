#include "tera/backend/cuda/kernels/embedding.cuh"

#include <algorithm>

#include "tera/backend/cuda/kernels/pdl.cuh"
#include "tera/backend/cuda/kernels/rows.cuh"

namespace tera::cuda::kernels {
namespace {

constexpr int forward_threads = 256, forward_rows = 2;  // rows per thread: loads in flight

// Loads wait for no condition: rows that are not there repeat the last one, ids outside the table read its first row.
template <class T, int N>
struct Gathered {
  std::int64_t ids[forward_rows];  // as rows of the table
  Pack<T, N> packs[forward_rows];

  __device__ void load_ids(const std::int32_t* from, std::int64_t row, std::int64_t rows, std::int64_t first) {
#pragma unroll
    for (int u = 0; u < forward_rows; ++u) ids[u] = from[row + u < rows ? row + u : rows - 1] - first;
  }
  __device__ static bool inside(std::int64_t id, std::int64_t table_rows) { return id >= 0 && id < table_rows; }
  __device__ void load_packs(const void* table, std::int64_t table_rows, std::int64_t width, std::int64_t column) {
#pragma unroll
    for (int u = 0; u < forward_rows; ++u)
      packs[u] = load<N>(static_cast<const T*>(table) + (inside(ids[u], table_rows) ? ids[u] : 0) * width + column);
  }
  __device__ Pack<T, N> pack(int u, std::int64_t table_rows, float otherwise) const {
    return inside(ids[u], table_rows) ? packs[u] : filled<T, N>(otherwise);
  }
};

template <bool with_positions, class T, int N>
__global__ void __launch_bounds__(forward_threads) embedding(EmbeddingForward args) {
  const std::int64_t width = args.width, row = static_cast<std::int64_t>(blockIdx.x) * forward_rows;
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.y) * forward_threads + threadIdx.x) * N;
  if (column >= width) return;
  Gathered<T, N> tokens, positions;
  tokens.load_ids(args.tokens, row, args.rows, args.first);
  if constexpr (with_positions) positions.load_ids(args.positions, row, args.rows, 0);
  tokens.load_packs(args.table, args.table_rows, width, column);
  if constexpr (with_positions) positions.load_packs(args.position_table, args.position_rows, width, column);
#pragma unroll
  for (int u = 0; u < forward_rows; ++u) {
    if (row + u >= args.rows) continue;
    Pack<T, N> result = tokens.pack(u, args.table_rows, args.partial ? 0.0f : broken_value());
    if constexpr (with_positions) {
      float token[N], position[N];
      unpack(result, token);
      unpack(positions.pack(u, args.position_rows, broken_value()), position);
#pragma unroll
      for (int j = 0; j < N; ++j) token[j] += position[j];
      result = packed<T>(token);
    }
    store(static_cast<T*>(args.y) + (row + u) * width + column, result);
  }
}

// The embedding table's gradient is a deterministic scatter-add: keys (id, t), sorted within buckets of ids, bring the
// rows of an id together. No two keys are equal, so the order is that of t. A block finds the ids of its bucket among
// all of them by itself, so one launch does it. A hash spreads ids over buckets: frequent ids are often neighbours.
constexpr int group_threads = 1024, group_warps = group_threads / 32, tile_keys = 2048;
constexpr std::int64_t max_buckets = 128, rows_per_bucket = 64;  // at least, on average

constexpr std::uint64_t no_key = ~std::uint64_t{0};  // key of id -1, after all others

// Ids outside the table, negative ones too, are left out of the sums.
__device__ std::uint64_t key_of(std::int32_t id, std::int64_t t) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(id)) << 32 | static_cast<std::uint32_t>(t);
}
__device__ std::uint32_t id_of(std::uint64_t key) { return static_cast<std::uint32_t>(key >> 32); }
__device__ std::uint32_t row_of(std::uint64_t key) { return static_cast<std::uint32_t>(key); }

__device__ unsigned bucket_of(std::int32_t id) {
  constexpr std::uint32_t golden_ratio = 2654435769u;  // 2^32 divided by the golden ratio
  return __umulhi(static_cast<std::uint32_t>(id) * golden_ratio, gridDim.x);
}

// Where the keys of this block's bucket go, and which of them are this warp's. Warps look at consecutive parts of ids.
struct Bucket {
  std::int64_t begin, end;  // range of this warp's ids
  std::int64_t offset;      // keys of the buckets before
  int keys, warp_keys_before;
};

__device__ Bucket count_keys(const EmbeddingBackward& args) {
  __shared__ int mine_of[32], before_of[32];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t part = (args.rows + group_threads - 1) / group_threads * 32, begin = warp * part;
  const std::int64_t end = begin + part < args.rows ? begin + part : args.rows;
  int mine = 0, before = 0;
#pragma unroll 8
  for (std::int64_t t = begin + lane; t < end; t += 32) {
    const unsigned bucket = bucket_of(args.ids[t]);
    mine += bucket == blockIdx.x;
    before += bucket < blockIdx.x;
  }
  mine = warp_sum(mine);
  before = warp_sum(before);
  if (lane == 0) mine_of[warp] = mine;
  if (lane == 0) before_of[warp] = before;
  __syncthreads();
  static_assert(group_warps == 32);  // a lane for each
  const int counted = mine_of[lane];
  return {begin, end, warp_sum(before_of[lane]), warp_sum(counted), warp_sum(lane < warp ? counted : 0)};
}

// Writes the bucket's keys in the order of t.
__device__ void collect_keys(const EmbeddingBackward& args, const Bucket& bucket, std::uint64_t* to) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int position = bucket.warp_keys_before;
#pragma unroll 4
  for (std::int64_t first = bucket.begin; first < bucket.end; first += 32) {
    const std::int64_t t = first + lane;
    const std::int32_t id = t < bucket.end ? args.ids[t] : 0;
    const bool mine = t < bucket.end && bucket_of(id) == blockIdx.x;
    const unsigned all = __ballot_sync(0xffffffffu, mine);
    if (mine) to[position + __popc(all & ((1u << lane) - 1u))] = key_of(id, t);
    position += __popc(all);
  }
}

// A bitonic network of the whole block; size is a power of two. Exchanges over short distances stay within the 64 keys
// of a warp.
__device__ void sort_tile(std::uint64_t* tile, int size) {
  __syncthreads();
  for (int length = 2; length <= size; length *= 2) {
    for (int distance = length / 2; distance > 0; distance /= 2) {
      if (distance >= 32)
        __syncthreads();
      else
        __syncwarp();
      for (int pair = static_cast<int>(threadIdx.x); pair < size / 2; pair += group_threads) {
        const int low = 2 * pair - (pair & (distance - 1)), high = low + distance;
        const bool ascending = (low & length) == 0;
        const std::uint64_t a = tile[low], b = tile[high];
        if ((a > b) == ascending) {
          tile[low] = b;
          tile[high] = a;
        }
      }
    }
  }
  __syncthreads();
}

// Merges runs of `length` sorted keys into runs of twice that: a key moves after the keys of the neighbouring run that
// are smaller.
__device__ void merge_runs(const std::uint64_t* from, std::uint64_t* to, int count, int length) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += group_threads) {
    const int run = i / length, begin = run * length, pair_begin = run / 2 * 2 * length;
    const int other_begin = run % 2 == 0 ? begin + length : begin - length;
    const std::uint64_t key = from[i];
    int low = min(other_begin, count), high = min(other_begin + length, count);
    const int searched = low;
    while (low < high) {
      const int middle = low + (high - low) / 2;
      if (from[middle] < key)
        low = middle + 1;
      else
        high = middle;
    }
    to[pair_begin + (i - begin) + (low - searched)] = key;
  }
  __syncthreads();
}

// For buckets that do not fit shared memory: tile by tile, then two by two. `spare` holds the keys at first.
__device__ void sort_large(std::uint64_t* keys, std::uint64_t* spare, int count, std::uint64_t* tile) {
  int merges = 0;
  for (int tiles = (count + tile_keys - 1) / tile_keys; tiles > 1; tiles = (tiles + 1) / 2) ++merges;
  std::uint64_t *from = merges % 2 == 0 ? keys : spare, *to = merges % 2 == 0 ? spare : keys;  // the last is to keys
  __syncthreads();
  for (int first = 0; first < count; first += tile_keys) {
    for (int i = static_cast<int>(threadIdx.x); i < tile_keys; i += group_threads)
      tile[i] = first + i < count ? spare[first + i] : no_key;
    sort_tile(tile, tile_keys);
    for (int i = static_cast<int>(threadIdx.x); i < tile_keys; i += group_threads)
      if (first + i < count) from[first + i] = tile[i];
    __syncthreads();
  }
  int length = tile_keys;
  for (int merge = 0; merge < merges; ++merge, length *= 2) {
    merge_runs(from, to, count, length);
    std::uint64_t* merged = to;
    to = from;
    from = merged;
  }
}

__global__ void __launch_bounds__(group_threads) group_rows(EmbeddingBackward args) {
  pdl_trigger();
  __shared__ std::uint64_t tile[tile_keys];
  const Bucket bucket = count_keys(args);
  std::uint64_t* keys = args.keys + bucket.offset;
  if (bucket.keys > tile_keys) {
    std::uint64_t* spare = keys + args.rows;
    collect_keys(args, bucket, spare);
    sort_large(keys, spare, bucket.keys, tile);
    return;
  }
  const int thread = static_cast<int>(threadIdx.x);
  collect_keys(args, bucket, tile);
  int size = 1;
  while (size < bucket.keys) size *= 2;
  for (int i = bucket.keys + thread; i < size; i += group_threads) tile[i] = no_key;
  sort_tile(tile, size);
  for (int i = thread; i < bucket.keys; i += group_threads) keys[i] = tile[i];
}

constexpr int sum_threads = 64, sum_batch = 8;
constexpr unsigned all_lanes = 0xffffffffu;

// sum += the rows dy[t], in order: lane i of the warp knows the i-th of `count`.
template <class T, int N>
__device__ void add_rows(float (&sum)[N], const T* dy, std::int64_t width, std::uint32_t t, int count) {
  for (int first = 0; first < count; first += sum_batch) {
    Pack<T, N> rows[sum_batch];
#pragma unroll
    for (int u = 0; u < sum_batch; ++u) {
      const std::uint32_t row = __shfl_sync(all_lanes, t, first + u);
      if (first + u < count) rows[u] = load<N>(dy + row * width);
    }
#pragma unroll
    for (int u = 0; u < sum_batch; ++u) {
      if (first + u >= count) continue;
      float value[N];
      unpack(rows[u], value);
#pragma unroll
      for (int j = 0; j < N; ++j) sum[j] += value[j];
    }
  }
}

// A block for each key and each part of the columns. The first key of an id adds up the rows of all of them, in order;
// the others' blocks have nothing to do.
template <class T, int N>
__global__ void __launch_bounds__(sum_threads, 18) add_runs(EmbeddingBackward args) {
  pdl_wait();
  const std::int64_t begin = blockIdx.x, width = args.width;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto key_at = [&](std::int64_t i) { return i >= 0 && i < args.rows ? args.keys[i] : no_key; };
  std::uint64_t key = key_at(begin + lane);
  const std::uint32_t id = __shfl_sync(all_lanes, id_of(key), 0);
  const std::int64_t table_row = static_cast<std::int64_t>(id) - args.first;
  if (table_row < 0 || table_row >= args.table_rows || id_of(key_at(begin - 1)) == id) return;
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.y) * sum_threads + threadIdx.x) * N;
  const bool there = column < width;  // others help with the keys
  const T* dy = static_cast<const T*>(args.dy) + (there ? column : 0);
  float* out = args.dtable + table_row * width + (there ? column : 0);
  float sum[N] = {};
  if (there) load_floats(out, sum);  // other blocks write what lies beyond the columns
  for (std::int64_t next = begin + 32;; next += 32) {
    const int count = __popc(__ballot_sync(all_lanes, id_of(key) == id));
    add_rows<T, N>(sum, dy, width, row_of(key), count);
    if (count < 32) break;
    key = key_at(next + lane);
  }
  if (there) store_floats(out, sum);
}

}  // namespace

cudaError_t launch_embedding(const EmbeddingForward& args, cudaStream_t stream) {
  if (args.rows == 0 || args.width == 0) return cudaSuccess;
  with_type(args.scalar, [&](auto zero) {
    using T = decltype(zero);
    const bool vectorized =
        aligned16<T>(args.y, args.width) && aligned16<T>(args.table) && aligned16<T>(args.position_table);
    with_pack<T>(vectorized, [&](auto pack) {
      constexpr int N = decltype(pack)::value;
      const dim3 grid(static_cast<unsigned>(divide_up(args.rows, forward_rows)),
                      static_cast<unsigned>(divide_up(args.width / N, forward_threads)));
      const auto kernel = args.positions ? embedding<true, T, N> : embedding<false, T, N>;
      kernel<<<grid, forward_threads, 0, stream>>>(args);
    });
  });
  return cudaGetLastError();
}

cudaError_t launch_embedding_back(const EmbeddingBackward& args, cudaStream_t stream) {
  if (args.rows == 0 || args.width == 0) return cudaSuccess;
  const std::int64_t buckets = std::min(divide_up(args.rows, rows_per_bucket), max_buckets);
  group_rows<<<static_cast<unsigned>(buckets), group_threads, 0, stream>>>(args);
  if (const cudaError_t status = cudaGetLastError(); status != cudaSuccess) return status;
  return with_type(args.scalar, [&](auto zero) {
    using T = decltype(zero);
    const bool vectorized = aligned16<T>(args.dy, args.width) && aligned16<float>(args.dtable, args.width);
    return with_pack<T>(vectorized, [&](auto pack) {
      constexpr int N = decltype(pack)::value;
      const dim3 grid(static_cast<unsigned>(args.rows), static_cast<unsigned>(divide_up(args.width / N, sum_threads)));
      return pdl_launch<add_runs<T, N>>(grid, sum_threads, stream, args);
    });
  });
}

}  // namespace tera::cuda::kernels
