#include "tera/backend/cuda/kernels/embedding.cuh"

#include "tera/backend/cuda/kernels/rows.cuh"

namespace tera::cuda::kernels {
namespace {

constexpr int forward_rows = 4;  // per thread: loads in flight

// The table's row, or null for an id outside of it.
template <class T>
__device__ const T* table_row(const void* table, std::int64_t id, std::int64_t table_rows, std::int64_t width) {
  return id >= 0 && id < table_rows ? static_cast<const T*>(table) + id * width : nullptr;
}

template <class T, int N>
__device__ Pack<T, N> load_or_broken(const T* row, std::int64_t column) {
  return row ? load<N>(row + column) : filled<T, N>(broken_value());
}

template <class T, int N>
__global__ void __launch_bounds__(row_threads) embedding(EmbeddingForward args) {
  const std::int64_t width = args.width;
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.x) * row_threads + threadIdx.x) * N;
  if (column >= width) return;
  T* y = static_cast<T*>(args.y) + column;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.y) * forward_rows;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * forward_rows; row < args.rows; row += step) {
    std::int32_t ids[forward_rows], positions[forward_rows];
    Pack<T, N> tokens[forward_rows], places[forward_rows];
#pragma unroll
    for (int u = 0; u < forward_rows; ++u) {
      ids[u] = row + u < args.rows ? args.tokens[row + u] : 0;
      positions[u] = row + u < args.rows && args.positions ? args.positions[row + u] : 0;
    }
#pragma unroll
    for (int u = 0; u < forward_rows; ++u) {
      if (row + u >= args.rows) continue;
      tokens[u] = load_or_broken<T, N>(table_row<T>(args.table, ids[u], args.table_rows, width), column);
      if (!args.positions) continue;
      places[u] =
          load_or_broken<T, N>(table_row<T>(args.position_table, positions[u], args.position_rows, width), column);
    }
#pragma unroll
    for (int u = 0; u < forward_rows; ++u) {
      if (row + u >= args.rows) continue;
      if (args.positions) {
        float token[N], place[N];
        unpack(tokens[u], token);
        unpack(places[u], place);
#pragma unroll
        for (int j = 0; j < N; ++j) token[j] += place[j];
        tokens[u] = packed<T>(token);
      }
      store(y + (row + u) * width, tokens[u]);
    }
  }
}

// Backward sorts keys (id, t): no two are equal, so any way of sorting leaves the rows of an id together and in the
// order of t. Tiles are sorted in shared memory, then merged two by two, each key finding its place by itself.
constexpr int sort_threads = 1024;
constexpr std::int64_t sort_tile = 2 * sort_threads;

constexpr std::uint64_t no_key = ~std::uint64_t{0};  // of id -1, behind all others

// Ids outside the table, negative ones too, sort behind all others and are left out of the sums.
__device__ std::uint64_t key_of(std::int32_t id, std::int64_t t) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(id)) << 32 | static_cast<std::uint32_t>(t);
}
__device__ std::uint32_t id_of(std::uint64_t key) { return static_cast<std::uint32_t>(key >> 32); }
__device__ std::int64_t row_of(std::uint64_t key) { return static_cast<std::int64_t>(key & 0xffffffffu); }

// One bitonic network per block of threads.
__global__ void __launch_bounds__(sort_threads) sort_tiles(EmbeddingBackward args) {
  __shared__ std::uint64_t tile[sort_tile];
  const std::int64_t first = blockIdx.x * sort_tile;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < sort_tile; i += sort_threads) {
    const std::int64_t t = first + i;
    tile[i] = t < args.rows ? key_of(args.ids[t], t) : no_key;
  }
  for (int length = 2; length <= sort_tile; length *= 2) {
    for (int distance = length / 2; distance > 0; distance /= 2) {
      __syncthreads();
      const int low = 2 * thread - (thread & (distance - 1)), high = low + distance;
      const bool ascending = (low & length) == 0;
      const std::uint64_t a = tile[low], b = tile[high];
      if ((a > b) == ascending) {
        tile[low] = b;
        tile[high] = a;
      }
    }
  }
  __syncthreads();
  for (int i = thread; i < sort_tile; i += sort_threads)
    if (first + i < args.rows) args.keys[first + i] = tile[i];
}

constexpr int merge_threads = 256;

// Runs of `length` sorted keys become runs of twice that: a key moves behind the keys of the neighbouring run that are
// smaller.
__global__ void __launch_bounds__(merge_threads)
    merge_runs(const std::uint64_t* from, std::uint64_t* to, std::int64_t count, std::int64_t length) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * merge_threads + threadIdx.x;
  if (i >= count) return;
  const std::int64_t run = i / length, begin = run * length, pair_begin = run / 2 * 2 * length;
  const std::int64_t other_begin = run % 2 == 0 ? begin + length : begin - length;
  const std::uint64_t key = from[i];
  std::int64_t low = other_begin < count ? other_begin : count;
  std::int64_t high = other_begin + length < count ? other_begin + length : count;
  const std::int64_t searched = low;
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (from[middle] < key)
      low = middle + 1;
    else
      high = middle;
  }
  to[pair_begin + (i - begin) + (low - searched)] = key;
}

constexpr int sum_threads = 64, sum_batch = 8;

// A block for each key and each part of the columns. The first key of an id adds up the rows of all of them, in order;
// the others' blocks have nothing to do.
template <class T, int N>
__global__ void __launch_bounds__(sum_threads) add_runs(EmbeddingBackward args, const std::uint64_t* keys) {
  const std::int64_t width = args.width, begin = blockIdx.x;
  const std::uint32_t id = id_of(keys[begin]);
  if (begin > 0 && id_of(keys[begin - 1]) == id) return;
  if (id >= args.table_rows) return;
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.y) * sum_threads + threadIdx.x) * N;
  if (column >= width) return;
  const T* dy = static_cast<const T*>(args.dy) + column;
  float* out = args.dtable + static_cast<std::int64_t>(id) * width + column;
  float sum[N];
  load_floats(out, sum);
  bool more = true;
  for (std::int64_t at = begin; more; at += sum_batch) {
    Pack<T, N> rows[sum_batch];
    std::uint64_t batch[sum_batch];
    bool mine[sum_batch];
#pragma unroll
    for (int u = 0; u < sum_batch; ++u) batch[u] = at + u < args.rows ? keys[at + u] : no_key;
#pragma unroll
    for (int u = 0; u < sum_batch; ++u) {
      mine[u] = id_of(batch[u]) == id;
      if (mine[u]) rows[u] = load<N>(dy + row_of(batch[u]) * width);
    }
#pragma unroll
    for (int u = 0; u < sum_batch; ++u) {
      if (!mine[u]) continue;
      float value[N];
      unpack(rows[u], value);
#pragma unroll
      for (int j = 0; j < N; ++j) sum[j] += value[j];
    }
    more = mine[sum_batch - 1];
  }
  store_floats(out, sum);
}

}  // namespace

cudaError_t launch_embedding(const EmbeddingForward& args, cudaStream_t stream) {
  if (args.rows == 0 || args.width == 0) return cudaSuccess;
  with_type(args.scalar, [&](auto zero) {
    using T = decltype(zero);
    const bool whole =
        aligned16<T>(args.y, args.width) && aligned16<T>(args.table) && aligned16<T>(args.position_table);
    with_pack<T>(whole, [&](auto pack) {
      constexpr int N = decltype(pack)::value;
      const dim3 grid = row_grid(args.rows, args.width / N, forward_rows);
      embedding<T, N><<<grid, row_threads, 0, stream>>>(args);
    });
  });
  return cudaGetLastError();
}

cudaError_t launch_embedding_back(const EmbeddingBackward& args, cudaStream_t stream) {
  if (args.rows == 0 || args.width == 0) return cudaSuccess;
  sort_tiles<<<static_cast<unsigned>(divide_up(args.rows, sort_tile)), sort_threads, 0, stream>>>(args);
  std::uint64_t *keys = args.keys, *spare = args.keys + args.rows;
  for (std::int64_t length = sort_tile; length < args.rows; length *= 2) {
    const auto blocks = static_cast<unsigned>(divide_up(args.rows, merge_threads));
    merge_runs<<<blocks, merge_threads, 0, stream>>>(keys, spare, args.rows, length);
    std::uint64_t* merged = spare;
    spare = keys;
    keys = merged;
  }
  with_type(args.scalar, [&](auto zero) {
    using T = decltype(zero);
    const bool whole = aligned16<T>(args.dy, args.width) && aligned16<float>(args.dtable, args.width);
    with_pack<T>(whole, [&](auto pack) {
      constexpr int N = decltype(pack)::value;
      const dim3 grid(static_cast<unsigned>(args.rows), static_cast<unsigned>(divide_up(args.width / N, sum_threads)));
      add_runs<T, N><<<grid, sum_threads, 0, stream>>>(args, keys);
    });
  });
  return cudaGetLastError();
}

}  // namespace tera::cuda::kernels
