// With g = dy * weight and x^ the normalised x: dx = rstd * (g - mean(g) - x^ * mean(g x^)) (+ residual), no mean(g)
// for RMSNorm. dweight sums dy * x^ and dbias dy over all vectors: each block of threads keeps the sums of its block of
// vectors in registers and leaves them in the workspace; add_sums adds those up, always in the same order.

#include "tera/backend/cuda/kernels/norm_rows.cuh"

namespace tera::cuda::kernels {
namespace {

constexpr int most_threads = 512;

// A thread's part of one vector: K packs of each tensor. Zero where there is nothing, so that it adds nothing.
template <int K, class T, int N>
struct Part {
  Pack<T, N> x[K], dy[K];
  float mean, rstd;
};

// `lanes` threads share a vector: a power of two up to 32, or whole warps; the block holds `teams` of them.
struct Team {
  int lanes, teams, lane, team;
};

template <bool layer, int K, class T, int N>
__device__ Part<K, T, N> load_part(const NormBackward& args, const Team& team, int v, int end) {
  const int packs = v < end ? args.shape.width / N : 0;
  const T* x = static_cast<const T*>(args.x) + offset_of(args.shape, v, args.x_stride);
  const T* dy = static_cast<const T*>(args.dy) + offset_of(args.shape, v, args.dy_stride);
  Part<K, T, N> part;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int i = team.lane + k * team.lanes;
    part.x[k] = i < packs ? load<N>(x + i * N) : filled<T, N>(0.0f);
    part.dy[k] = i < packs ? load<N>(dy + i * N) : filled<T, N>(0.0f);
  }
  part.rstd = v < end ? args.rstd[v] : 0.0f;
  part.mean = layer && v < end ? args.mean[v] : 0.0f;
  return part;
}

struct Sums {
  float g, gx;
};

// Over the threads of a vector, in a fixed order. shared: one value per warp; two of them take turns, so that one
// barrier a time is enough.
__device__ Sums team_sums(Sums mine, const Team& team, Sums (&shared)[2][most_threads / 32], int turn) {
  if (team.lanes <= 32) return {lanes_sum(mine.g, team.lanes), lanes_sum(mine.gx, team.lanes)};
  mine = {warp_sum(mine.g), warp_sum(mine.gx)};
  if (threadIdx.x % 32 == 0) shared[turn][threadIdx.x / 32] = mine;
  __syncthreads();
  const int warps = team.lanes / 32, first = team.team * warps;
  Sums all = shared[turn][first];
  for (int warp = 1; warp < warps; ++warp) {
    all.g += shared[turn][first + warp].g;
    all.gx += shared[turn][first + warp].gx;
  }
  return all;
}

template <bool layer, int K, class T, int N>
__device__ Sums part_sums(const Part<K, T, N>& part, const Pack<T, N> (&weight)[K]) {
  Sums sums{0.0f, 0.0f};
#pragma unroll
  for (int k = 0; k < K; ++k) {
    float x[N], dy[N], factor[N];
    unpack(part.x[k], x);
    unpack(part.dy[k], dy);
    unpack(weight[k], factor);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float g = dy[j] * factor[j];
      sums.gx += g * (x[j] - part.mean);
      if constexpr (layer) sums.g += g;
    }
  }
  return sums;
}

// What pack k gives to the weight's and the bias's gradient.
template <bool layer, int K, class T, int N>
__device__ void add_weight_gradient(const Part<K, T, N>& part, int k, float (&dweight)[N], float (&dbias)[N]) {
  float x[N], dy[N];
  unpack(part.x[k], x);
  unpack(part.dy[k], dy);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    dweight[j] += dy[j] * normalised<layer, T>(x[j], part.mean, part.rstd);
    if constexpr (layer) dbias[j] += dy[j];
  }
}

// dx of pack k.
template <bool layer, int K, class T, int N>
__device__ Pack<T, N> input_gradient(const Part<K, T, N>& part, int k, const Pack<T, N>& weight, const Sums& means,
                                     const Pack<T, N>& residual) {
  float x[N], dy[N], factor[N], dx[N];
  unpack(part.x[k], x);
  unpack(part.dy[k], dy);
  unpack(weight, factor);
  unpack(residual, dx);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const float normed = (x[j] - part.mean) * part.rstd, g = dy[j] * factor[j];
    dx[j] += (g - means.g - normed * means.gx) * part.rstd;
  }
  return packed<T>(dx);
}

// The teams' sums of one gradient, added in order into the block's row of `sums`. shared: a float for each of a team's
// elements. Only where teams have one pack per thread; with more there is one team.
template <int K, int N>
__device__ void leave_sums(const float (&mine)[K][N], const Team& team, int width, float* shared, float* sums) {
  float* out = sums + static_cast<std::int64_t>(blockIdx.x) * width;
  if constexpr (K == 1) {
    __syncthreads();  // shared may still be read for the gradient before
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

// All in one pass over memory: dx, and the sums of one block of vectors. The next vector's loads are under way while
// this one's sums are formed. dx may be dy or residual: a vector's are read by the threads that then write it.
template <bool layer, int K, class T, int N>
__global__ void __launch_bounds__(most_threads, K == 1 ? 2 : 1) norm_back_rows(NormBackward args, int lanes) {
  __shared__ Sums scratch[2][most_threads / 32];
  alignas(16) __shared__ float shared[K == 1 ? most_threads * N : 4];
  const Team team{.lanes = lanes,
                  .teams = static_cast<int>(blockDim.x) / lanes,
                  .lane = static_cast<int>(threadIdx.x) % lanes,
                  .team = static_cast<int>(threadIdx.x) / lanes};
  const int packs = args.shape.width / N;
  const float inverse = 1.0f / static_cast<float>(args.shape.width);
  const int begin = static_cast<int>(blockIdx.x) * args.vectors_per_block;
  const int end = min(begin + args.vectors_per_block, args.shape.vectors);
  Pack<T, N> weight[K];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int i = team.lane + k * lanes;
    weight[k] = i < packs ? load<N>(static_cast<const T*>(args.weight) + i * N) : filled<T, N>(0.0f);
  }
  float dweight[K][N] = {}, dbias[K][N] = {};
  Part<K, T, N> part = load_part<layer, K, T, N>(args, team, begin + team.team, end);
  int turn = 0;
  for (int first = begin; first < end; first += team.teams, turn ^= 1) {  // the same for all threads: barriers
    const int v = first + team.team;
    const Part<K, T, N> next = load_part<layer, K, T, N>(args, team, v + team.teams, end);
    const T* from = static_cast<const T*>(args.residual) + offset_of(args.shape, v, args.residual_stride);
    Pack<T, N> residual[K];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int i = team.lane + k * lanes;
      residual[k] = args.residual && v < end && i < packs ? load<N>(from + i * N) : filled<T, N>(0.0f);
    }
    const Sums sums = team_sums(part_sums<layer>(part, weight), team, scratch, turn);
    const Sums means{sums.g * inverse, sums.gx * part.rstd * inverse};
    T* dx = static_cast<T*>(args.dx) + offset_of(args.shape, v, args.dx_stride);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      add_weight_gradient<layer>(part, k, dweight[k], dbias[k]);
      const int i = team.lane + k * lanes;
      if (v < end && i < packs) store(dx + i * N, input_gradient<layer>(part, k, weight[k], means, residual[k]));
    }
    part = next;
  }
  if (args.dweight_sums) leave_sums(dweight, team, args.shape.width, shared, args.dweight_sums);
  if constexpr (layer) {
    if (args.dbias_sums) leave_sums(dbias, team, args.shape.width, shared, args.dbias_sums);
  }
}

// Vectors too long for that: first the sums, a thread for each pack of columns ...
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

// ... then dx, which may overwrite dy: a block for each vector, reading it twice.
template <bool layer, class T, int N>
__global__ void __launch_bounds__(most_threads) norm_back_long(NormBackward args) {
  __shared__ float scratch[32];
  const int v = static_cast<int>(blockIdx.x), width = args.shape.width, step = static_cast<int>(blockDim.x) * N;
  const T* x = static_cast<const T*>(args.x) + offset_of(args.shape, v, args.x_stride);
  const T* dy = static_cast<const T*>(args.dy) + offset_of(args.shape, v, args.dy_stride);
  const T* residual = static_cast<const T*>(args.residual) + offset_of(args.shape, v, args.residual_stride);
  T* dx = static_cast<T*>(args.dx) + offset_of(args.shape, v, args.dx_stride);
  const auto part_at = [&](int at) {
    Part<1, T, N> part;
    part.x[0] = load<N>(x + at);
    part.dy[0] = load<N>(dy + at);
    part.rstd = args.rstd[v];
    part.mean = layer ? args.mean[v] : 0.0f;
    return part;
  };
  Sums sums{0.0f, 0.0f};
  for (int at = static_cast<int>(threadIdx.x) * N; at < width; at += step) {
    const Pack<T, N> weight[1] = {load<N>(static_cast<const T*>(args.weight) + at)};
    const Sums mine = part_sums<layer>(part_at(at), weight);
    sums = {sums.g + mine.g, sums.gx + mine.gx};
  }
  const float inverse = 1.0f / static_cast<float>(width), rstd = args.rstd[v];
  Sums means{0.0f, block_sum(sums.gx, scratch) * rstd * inverse};
  if constexpr (layer) means.g = block_sum(sums.g, scratch) * inverse;
  for (int at = static_cast<int>(threadIdx.x) * N; at < width; at += step) {
    const auto weight = load<N>(static_cast<const T*>(args.weight) + at);
    const auto add = args.residual ? load<N>(residual + at) : filled<T, N>(0.0f);
    store(dx + at, input_gradient<layer>(part_at(at), 0, weight, means, add));
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
  const int teams = most_threads / lanes;
  norm_back_rows<layer, K, T, N>
      <<<static_cast<unsigned>(args.blocks), static_cast<unsigned>(lanes * teams), 0, stream>>>(args, lanes);
}

template <bool layer, class T, int N>
void launch_typed(const NormBackward& args, cudaStream_t stream) {
  constexpr int warp = 32;
  const int packs = args.shape.width / N;
  const auto whole_warps = [](std::int64_t threads) { return static_cast<int>(divide_up(threads, warp) * warp); };
  if (packs <= warp) {
    int lanes = 1;
    while (lanes < packs) lanes *= 2;
    launch_rows<layer, 1, T, N>(args, lanes, stream);
  } else if (packs <= most_threads) {
    launch_rows<layer, 1, T, N>(args, whole_warps(packs), stream);
  } else if (packs <= 2 * most_threads) {
    launch_rows<layer, 2, T, N>(args, whole_warps(divide_up(packs, 2)), stream);
  } else {
    if (args.dweight_sums || args.dbias_sums) {
      const dim3 grid(static_cast<unsigned>(divide_up(packs, row_threads)), static_cast<unsigned>(args.blocks));
      norm_back_columns<layer, T, N><<<grid, row_threads, 0, stream>>>(args);
    }
    norm_back_long<layer, T, N><<<static_cast<unsigned>(args.shape.vectors), most_threads, 0, stream>>>(args);
  }
}

}  // namespace

cudaError_t launch_norm_back(const NormBackward& args, cudaStream_t stream) {
  if (args.shape.vectors == 0 || args.shape.width == 0) return cudaSuccess;
  with_type(args.scalar, [&](auto zero) {
    using T = decltype(zero);
    const bool whole = aligned16<T>(args.x, args.x_stride) && aligned16<T>(args.dy, args.dy_stride) &&
                       aligned16<T>(args.dx, args.dx_stride) && aligned16<T>(args.weight, args.shape.width) &&
                       (!args.residual || aligned16<T>(args.residual, args.residual_stride)) &&
                       aligned16<float>(args.dweight_sums) && aligned16<float>(args.dbias_sums);
    with_pack<T>(whole, [&](auto pack) {
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
