// dx = rstd * (g - mean(g) - x^ * mean(g x^)) (+ residual), where g = dy * weight and x^ is the normalised x; no
// mean(g) for RMSNorm. dweight sums dy * x^ and dbias dy over all vectors: each block of threads keeps the sums of its
// vectors in registers and stores these partial sums in the workspace; add_sums adds them up, always in the same order.

#include "tera/backend/cuda/kernels/norm_rows.cuh"
#include "tera/backend/cuda/kernels/ptx.cuh"

namespace tera::cuda::kernels {
namespace {

constexpr int max_threads = 512;

// `lanes` threads share a vector: a power of two up to 32, or full warps; the block holds `teams` of them.
struct Team {
  int lanes, teams, lane, team;
};

template <class T, int N>
__device__ void copy_async(Pack<T, N>* to_shared, const T* from) {
  if constexpr (sizeof(Pack<T, N>) == 16) {
    ptx::cp_async_16(to_shared, from);
  } else {
    *to_shared = load<N>(from);
  }
}

// A double buffer of cp.async in shared memory: the vector in use, and the next in flight. A thread copies its own K
// packs of each tensor and waits for nobody else's.
template <int K, class T, int N>
struct AsyncStages {
  enum { x, dy, residual, tensors };
  static constexpr int bytes_per_thread = 2 * tensors * K * static_cast<int>(sizeof(Pack<T, N>));
  Pack<T, N>* mine;  // [2, tensors, K, blockDim.x], from this thread's column on

  __device__ Pack<T, N>* at(int slot, int tensor, int k) const {
    return mine + ((slot * tensors + tensor) * K + k) * static_cast<int>(blockDim.x);
  }
  // Starts the copies of vector v, if there is one.
  __device__ void issue_prefetch(const NormBackward& args, const Team& team, int v, int slot) const {
    const int packs = v < args.shape.vectors ? args.shape.width / N : 0;
    const T* from_x = static_cast<const T*>(args.x) + offset_of(args.shape, v, args.x_stride);
    const T* from_dy = static_cast<const T*>(args.dy) + offset_of(args.shape, v, args.dy_stride);
    const T* from_residual = static_cast<const T*>(args.residual) + offset_of(args.shape, v, args.residual_stride);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int i = team.lane + k * team.lanes;
      if (i >= packs) continue;
      copy_async(at(slot, x, k), from_x + i * N);
      copy_async(at(slot, dy, k), from_dy + i * N);
      if (args.residual) copy_async(at(slot, residual, k), from_residual + i * N);
    }
    ptx::cp_async_commit_group();
  }
  // Returns when all but the latest prefetch have arrived.
  __device__ void wait() const { ptx::cp_async_wait_group<1>(); }
};

struct Statistics {
  float mean, rstd;
};

template <bool layer>
__device__ Statistics statistics_of(const NormBackward& args, int v) {
  if (v >= args.shape.vectors) return {0.0f, 0.0f};
  return {layer ? args.mean[v] : 0.0f, args.rstd[v]};
}

struct Sums {
  float g, gx;
};

// Sums over the threads of a vector, in a fixed order. shared: one value per warp; two slots alternate, so that one
// barrier a time is enough. The team has a named barrier of its own: teams do not wait for each other.
template <bool layer>
__device__ Sums team_sums(Sums mine, const Team& team, Sums (&shared)[2][max_threads / 32], int slot) {
  const int together = team.lanes < 32 ? team.lanes : 32;
  mine.gx = lanes_sum(mine.gx, together);
  if constexpr (layer) mine.g = lanes_sum(mine.g, together);
  if (team.lanes <= 32) return mine;
  if (threadIdx.x % 32 == 0) shared[slot][threadIdx.x / 32] = mine;
  ptx::bar_sync(team.team + 1, team.lanes);  // barrier 0 is the block's
  const int warps = team.lanes / 32, first = team.team * warps;
  Sums all = shared[slot][first];
  for (int warp = 1; warp < warps; ++warp) {
    all.gx += shared[slot][first + warp].gx;
    if constexpr (layer) all.g += shared[slot][first + warp].g;
  }
  return all;
}

template <bool layer, class T, int N>
__device__ void add_to_sums(Sums& sums, const Pack<T, N>& x_pack, const Pack<T, N>& dy_pack, const Pack<T, N>& weight,
                            float mean) {
  float x[N], dy[N], factor[N];
  unpack(x_pack, x);
  unpack(dy_pack, dy);
  unpack(weight, factor);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const float g = dy[j] * factor[j];
    sums.gx += g * (x[j] - mean);
    if constexpr (layer) sums.g += g;
  }
}

// Adds a pack's contribution to the weight's and the bias's gradient.
template <bool layer, class T, int N>
__device__ void add_weight_gradient(const Pack<T, N>& x_pack, const Pack<T, N>& dy_pack, const Statistics& of,
                                    float (&dweight)[N], float (&dbias)[N]) {
  float x[N], dy[N];
  unpack(x_pack, x);
  unpack(dy_pack, dy);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    dweight[j] += dy[j] * normalised<layer, T>(x[j], of.mean, of.rstd);
    if constexpr (layer) dbias[j] += dy[j];
  }
}

// dx of a pack. means: those of g and of g x^.
template <class T, int N>
__device__ Pack<T, N> input_gradient(const Pack<T, N>& x_pack, const Pack<T, N>& dy_pack, const Pack<T, N>& weight,
                                     const Pack<T, N>& residual, const Statistics& of, const Sums& means) {
  float x[N], dy[N], factor[N], dx[N];
  unpack(x_pack, x);
  unpack(dy_pack, dy);
  unpack(weight, factor);
  unpack(residual, dx);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const float normed = (x[j] - of.mean) * of.rstd, g = dy[j] * factor[j];
    dx[j] += (g - means.g - normed * means.gx) * of.rstd;
  }
  return packed<T>(dx);
}

// The teams' sums of one gradient, added in order into the block's row of `sums`. shared: a float for each of a team's
// elements. Only where teams have one pack per thread; with more there is one team.
template <int K, int N>
__device__ void store_partials(const float (&mine)[K][N], const Team& team, int width, float* shared, float* sums) {
  float* out = sums + static_cast<std::int64_t>(blockIdx.x) * width;
  if constexpr (K == 1) {
    __syncthreads();  // shared may still be in use: by other teams, by the gradient before
#pragma unroll
    for (int j = 0; j < N; ++j) shared[threadIdx.x * N + j] = mine[0][j];
    __syncthreads();
    for (int column = static_cast<int>(threadIdx.x); column < width; column += static_cast<int>(blockDim.x)) {
      float sum = 0.0f;
      for (int other = 0; other < team.teams; ++other) sum += shared[other * team.lanes * N + column];
      out[column] = sum;
    }
  } else {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int column = (team.lane + k * team.lanes) * N;
      if (column < width) store_floats(out + column, mine[k]);
    }
  }
}

// The fused backward, in one pass over memory: dx, and the partial sums of the vectors that this block's teams come to.
// All blocks' teams go through memory side by side. dx may be dy or residual: the thread that writes an element is the
// one that read it.
template <bool layer, int K, class T, int N>
__global__ void __launch_bounds__(max_threads, K == 1 ? 2 : 1) norm_back_rows(NormBackward args, int lanes) {
  using Here = AsyncStages<K, T, N>;
  extern __shared__ uint4 buffer[];
  __shared__ Sums scratch[2][max_threads / 32];
  const Team team{.lanes = lanes,
                  .teams = static_cast<int>(blockDim.x) / lanes,
                  .lane = static_cast<int>(threadIdx.x) % lanes,
                  .team = static_cast<int>(threadIdx.x) / lanes};
  const int packs = args.shape.width / N, step = static_cast<int>(gridDim.x) * team.teams;
  const float inverse = 1.0f / static_cast<float>(args.shape.width);
  int v = static_cast<int>(blockIdx.x) * team.teams + team.team;
  const Here stages{reinterpret_cast<Pack<T, N>*>(buffer) + threadIdx.x};
  stages.issue_prefetch(args, team, v, 0);
  Statistics next = statistics_of<layer>(args, v);
  Pack<T, N> weight[K];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int i = team.lane + k * lanes;
    weight[k] = i < packs ? load<N>(static_cast<const T*>(args.weight) + i * N) : filled<T, N>(0.0f);
  }
  float dweight[K][N] = {}, dbias[K][N] = {};
  int slot = 0;
  // All threads make as many rounds, whatever is left for their team: shuffles take full warps.
  for (int first = v - team.team; first < args.shape.vectors; first += step, v += step, slot ^= 1) {
    stages.issue_prefetch(args, team, v + step, slot ^ 1);
    const Statistics now = next;
    next = statistics_of<layer>(args, v + step);
    stages.wait();
    const int here = v < args.shape.vectors ? packs : 0;
    Sums mine{0.0f, 0.0f};
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (team.lane + k * lanes >= here) continue;
      add_to_sums<layer>(mine, *stages.at(slot, Here::x, k), *stages.at(slot, Here::dy, k), weight[k], now.mean);
    }
    const Sums sums = team_sums<layer>(mine, team, scratch, slot);
    const Sums means{sums.g * inverse, sums.gx * now.rstd * inverse};
    T* dx = static_cast<T*>(args.dx) + offset_of(args.shape, v, args.dx_stride);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int i = team.lane + k * lanes;
      if (i >= here) continue;
      const Pack<T, N> x = *stages.at(slot, Here::x, k), dy = *stages.at(slot, Here::dy, k);
      const Pack<T, N> add = args.residual ? *stages.at(slot, Here::residual, k) : filled<T, N>(0.0f);
      store(dx + i * N, input_gradient(x, dy, weight[k], add, now, means));
      add_weight_gradient<layer>(x, dy, now, dweight[k], dbias[k]);
    }
  }
  auto* shared = reinterpret_cast<float*>(buffer);
  if (args.dweight_sums) store_partials(dweight, team, args.shape.width, shared, args.dweight_sums);
  if constexpr (layer) {
    if (args.dbias_sums) store_partials(dbias, team, args.shape.width, shared, args.dbias_sums);
  }
}

// Vectors too long for norm_back_rows(), the first kernel: the partial sums, a thread for each pack of columns.
template <bool layer, class T, int N>
__global__ void __launch_bounds__(row_threads) norm_back_columns(NormBackward args) {
  const int column = static_cast<int>(blockIdx.x * row_threads + threadIdx.x) * N;
  if (column >= args.shape.width) return;
  const int begin = static_cast<int>(blockIdx.y) * args.vectors_per_block;
  const int end = min(begin + args.vectors_per_block, args.shape.vectors);
  const T *x = static_cast<const T*>(args.x) + column, *dy = static_cast<const T*>(args.dy) + column;
  float dweight[N] = {}, dbias[N] = {};
#pragma unroll 4
  for (int v = begin; v < end; ++v) {
    float x_values[N], dy_values[N];
    unpack(load<N>(x + offset_of(args.shape, v, args.x_stride)), x_values);
    unpack(load<N>(dy + offset_of(args.shape, v, args.dy_stride)), dy_values);
    const float mean = layer ? args.mean[v] : 0.0f, rstd = args.rstd[v];
#pragma unroll
    for (int j = 0; j < N; ++j) {
      dweight[j] += dy_values[j] * normalised<layer, T>(x_values[j], mean, rstd);
      dbias[j] += dy_values[j];
    }
  }
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.y) * args.shape.width + column;
  if (args.dweight_sums) store_floats(args.dweight_sums + at, dweight);
  if (args.dbias_sums) store_floats(args.dbias_sums + at, dbias);
}

// Vectors too long for norm_back_rows(), the second kernel: dx, which may overwrite dy, a block for each vector,
// reading it twice.
template <bool layer, class T, int N>
__global__ void __launch_bounds__(max_threads) norm_back_long(NormBackward args) {
  __shared__ float scratch[32];
  const int v = static_cast<int>(blockIdx.x), width = args.shape.width, step = static_cast<int>(blockDim.x) * N;
  const T* x = static_cast<const T*>(args.x) + offset_of(args.shape, v, args.x_stride);
  const T* dy = static_cast<const T*>(args.dy) + offset_of(args.shape, v, args.dy_stride);
  const T* residual = static_cast<const T*>(args.residual) + offset_of(args.shape, v, args.residual_stride);
  T* dx = static_cast<T*>(args.dx) + offset_of(args.shape, v, args.dx_stride);
  const Statistics of = statistics_of<layer>(args, v);
  Sums sums{0.0f, 0.0f};
  for (int at = static_cast<int>(threadIdx.x) * N; at < width; at += step) {
    const auto weight = load<N>(static_cast<const T*>(args.weight) + at);
    add_to_sums<layer>(sums, load<N>(x + at), load<N>(dy + at), weight, of.mean);
  }
  const float inverse = 1.0f / static_cast<float>(width);
  Sums means{0.0f, block_sum(sums.gx, scratch) * of.rstd * inverse};
  if constexpr (layer) means.g = block_sum(sums.g, scratch) * inverse;
  for (int at = static_cast<int>(threadIdx.x) * N; at < width; at += step) {
    const auto weight = load<N>(static_cast<const T*>(args.weight) + at);
    const auto add = args.residual ? load<N>(residual + at) : filled<T, N>(0.0f);
    store(dx + at, input_gradient(load<N>(x + at), load<N>(dy + at), weight, add, of, means));
  }
}

constexpr int sum_columns = 32, sum_segments = 16, sum_threads = sum_columns * sum_segments;

// Each of 16 threads adds every 16th block's sum of a column, one of them the 16 results; blockIdx.y: dweight, dbias.
__global__ void __launch_bounds__(sum_threads) add_sums(NormBackward args) {
  __shared__ float shared[sum_segments][sum_columns];
  const bool bias = blockIdx.y == 1;
  const float* sums = bias ? args.dbias_sums : args.dweight_sums;
  if (!sums) return;
  const int column = static_cast<int>(blockIdx.x * sum_columns + threadIdx.x);
  const bool inside = column < args.shape.width;
  float sum = 0.0f;
  if (inside) {
#pragma unroll 8
    for (int block = static_cast<int>(threadIdx.y); block < args.blocks; block += sum_segments)
      sum += sums[static_cast<std::int64_t>(block) * args.shape.width + column];
  }
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || !inside) return;
  sum = shared[0][threadIdx.x];
  for (int segment = 1; segment < sum_segments; ++segment) sum += shared[segment][threadIdx.x];
  float* gradient = bias ? args.dbias : args.dweight;
  gradient[column] += sum;
}

template <bool layer, int K, class T, int N>
void launch_rows(const NormBackward& args, int lanes, cudaStream_t stream) {
  const int threads = max_threads / lanes * lanes, bytes = threads * AsyncStages<K, T, N>::bytes_per_thread;
  auto* kernel = norm_back_rows<layer, K, T, N>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);  // required beyond 48 KB
  kernel<<<static_cast<unsigned>(args.blocks), static_cast<unsigned>(threads), static_cast<std::size_t>(bytes),
           stream>>>(args, lanes);
}

template <bool layer, class T, int N>
void launch_typed(const NormBackward& args, cudaStream_t stream) {
  constexpr int warp = 32;
  const int packs = args.shape.width / N;
  const auto padded_to_warps = [](std::int64_t threads) { return static_cast<int>(divide_up(threads, warp) * warp); };
  if (packs <= warp) {
    int lanes = 1;
    while (lanes < packs) lanes *= 2;
    launch_rows<layer, 1, T, N>(args, lanes, stream);
  } else if (packs <= max_threads) {
    launch_rows<layer, 1, T, N>(args, padded_to_warps(packs), stream);
  } else if (packs <= 2 * max_threads) {
    launch_rows<layer, 2, T, N>(args, padded_to_warps(divide_up(packs, 2)), stream);
  } else {
    if (args.dweight_sums || args.dbias_sums) {
      const dim3 grid(static_cast<unsigned>(divide_up(packs, row_threads)), static_cast<unsigned>(args.blocks));
      norm_back_columns<layer, T, N><<<grid, row_threads, 0, stream>>>(args);
    }
    norm_back_long<layer, T, N><<<static_cast<unsigned>(args.shape.vectors), max_threads, 0, stream>>>(args);
  }
}

}  // namespace

cudaError_t launch_norm_back(const NormBackward& args, cudaStream_t stream) {
  if (args.shape.vectors == 0 || args.shape.width == 0) return cudaSuccess;
  with_type(args.scalar, [&](auto zero) {
    using T = decltype(zero);
    const bool vectorized = aligned16<T>(args.x, args.x_stride) && aligned16<T>(args.dy, args.dy_stride) &&
                            aligned16<T>(args.dx, args.dx_stride) && aligned16<T>(args.weight, args.shape.width) &&
                            (!args.residual || aligned16<T>(args.residual, args.residual_stride)) &&
                            aligned16<float>(args.dweight_sums) && aligned16<float>(args.dbias_sums);
    with_pack<T>(vectorized, [&](auto pack) {
      constexpr int N = decltype(pack)::value;
      if (args.layer)
        launch_typed<true, T, N>(args, stream);
      else
        launch_typed<false, T, N>(args, stream);
    });
  });
  if (args.dweight_sums || args.dbias_sums) {
    const dim3 grid(static_cast<unsigned>(divide_up(args.shape.width, sum_columns)), args.dbias_sums ? 2 : 1);
    add_sums<<<grid, dim3(sum_columns, sum_segments), 0, stream>>>(args);
  }
  return cudaGetLastError();
}

}  // namespace tera::cuda::kernels
