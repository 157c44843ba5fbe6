#include "tera/backend/cuda/kernels/norm_rows.cuh"

namespace tera::cuda::kernels {
namespace {

template <bool layer, class T, int N>
__device__ Pack<T, N> scaled(const Pack<T, N>& x, const Pack<T, N>& weight, const T* bias, float mean, float rstd) {
  float out[N], factor[N], add[N];
  unpack(x, out);
  unpack(weight, factor);
  if constexpr (layer) unpack(load<N>(bias), add);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    out[j] = normalised<layer, T>(out[j], mean, rstd) * factor[j];
    if constexpr (layer) out[j] += add[j];
  }
  return packed<T>(out);
}

constexpr int group_threads = 128;

// Short vectors: `lanes` threads of a warp for each, K packs of it per thread, U vectors at a time.
template <bool layer, int K, int U, class T, int N>
__global__ void __launch_bounds__(group_threads) norm_groups(NormForward args, int lanes) {
  const int packs = args.shape.width / N, lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  const int groups = group_threads / lanes;
  const auto width = static_cast<float>(args.shape.width);
  const int first = static_cast<int>(blockIdx.x) * groups * U + static_cast<int>(threadIdx.x) / lanes;
  Pack<T, N> x[U][K];
#pragma unroll
  for (int u = 0; u < U; ++u) {
    const int v = first + u * groups;
    const T* from = static_cast<const T*>(args.x) + offset_of(args.shape, v, args.x_stride);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int i = lane + k * lanes;
      x[u][k] = v < args.shape.vectors && i < packs ? load<N>(from + i * N) : filled<T, N>(0.0f);
    }
  }
  Pack<T, N> weight[K];
#pragma unroll
  for (int k = 0; k < K; ++k)
    if (lane + k * lanes < packs) weight[k] = load<N>(static_cast<const T*>(args.weight) + (lane + k * lanes) * N);
#pragma unroll
  for (int u = 0; u < U; ++u) {  // no thread leaves before the sums: shuffles take full warps
    float mean = 0.0f, squares = 0.0f;
    if constexpr (layer) {
      float sum = 0.0f;
#pragma unroll
      for (int k = 0; k < K; ++k) sum += sum_of(x[u][k]);
      mean = lanes_sum(sum, lanes) / width;
    }
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (lane + k * lanes < packs) squares += squares_of(x[u][k], mean);
    const float rstd = 1.0f / sqrtf(lanes_sum(squares, lanes) / width + args.eps);
    const int v = first + u * groups;
    if (v >= args.shape.vectors) continue;
    T* y = static_cast<T*>(args.y) + offset_of(args.shape, v, args.y_stride);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int i = lane + k * lanes;
      if (i >= packs) continue;
      store(y + i * N, scaled<layer>(x[u][k], weight[k], static_cast<const T*>(args.bias) + i * N, mean, rstd));
    }
    if (lane == 0) {
      args.rstd[v] = rstd;
      if constexpr (layer) args.mean[v] = mean;
    }
  }
}

constexpr int block_threads = 1024, block_packs = 4;

// Long vectors: a block for each, block_packs packs per thread in registers; what is longer is read again.
template <bool layer, class T, int N>
__global__ void __launch_bounds__(block_threads) norm_block(NormForward args) {
  __shared__ float scratch[32];
  const int packs = args.shape.width / N, step = static_cast<int>(blockDim.x);
  const int thread = static_cast<int>(threadIdx.x);
  const auto width = static_cast<float>(args.shape.width);
  const int v = static_cast<int>(blockIdx.x);
  const T* x = static_cast<const T*>(args.x) + offset_of(args.shape, v, args.x_stride);
  T* y = static_cast<T*>(args.y) + offset_of(args.shape, v, args.y_stride);
  const auto *weight = static_cast<const T*>(args.weight), *bias = static_cast<const T*>(args.bias);
  Pack<T, N> kept[block_packs], kept_weight[block_packs];
#pragma unroll
  for (int k = 0; k < block_packs; ++k) {
    if (thread + k * step >= packs) continue;
    kept[k] = load<N>(x + (thread + k * step) * N);
    kept_weight[k] = load<N>(weight + (thread + k * step) * N);
  }
  const auto each = [&](const auto& body) {
#pragma unroll
    for (int k = 0; k < block_packs; ++k)
      if (thread + k * step < packs) body(kept[k]);
    for (int i = thread + block_packs * step; i < packs; i += step) body(load<N>(x + i * N));
  };
  float mean = 0.0f, squares = 0.0f;
  if constexpr (layer) {
    float sum = 0.0f;
    each([&](const Pack<T, N>& pack) { sum += sum_of(pack); });
    mean = block_sum(sum, scratch) / width;
  }
  each([&](const Pack<T, N>& pack) { squares += squares_of(pack, mean); });
  const float rstd = 1.0f / sqrtf(block_sum(squares, scratch) / width + args.eps);
#pragma unroll
  for (int k = 0; k < block_packs; ++k) {
    const int at = (thread + k * step) * N;
    if (at < packs * N) store(y + at, scaled<layer>(kept[k], kept_weight[k], bias + at, mean, rstd));
  }
  for (int at = (thread + block_packs * step) * N; at < packs * N; at += step * N)
    store(y + at, scaled<layer>(load<N>(x + at), load<N>(weight + at), bias + at, mean, rstd));
  if (thread == 0) {
    args.rstd[v] = rstd;
    if constexpr (layer) args.mean[v] = mean;
  }
}

template <bool layer, class T, int N>
void launch_typed(const NormForward& args, cudaStream_t stream) {
  constexpr int warp = 32, short_vectors = 4, warp_packs = 4;
  const std::int64_t packs = args.shape.width / N, vectors = args.shape.vectors;
  if (packs <= warp) {
    int lanes = 1;
    while (lanes < packs) lanes *= 2;
    const auto blocks = static_cast<unsigned>(divide_up(vectors, group_threads / lanes * short_vectors));
    norm_groups<layer, 1, short_vectors, T, N><<<blocks, group_threads, 0, stream>>>(args, lanes);
  } else if (packs <= warp * warp_packs) {
    const auto blocks = static_cast<unsigned>(divide_up(vectors, group_threads / warp));
    norm_groups<layer, warp_packs, 1, T, N><<<blocks, group_threads, 0, stream>>>(args, warp);
  } else {
    const std::int64_t wanted = divide_up(divide_up(packs, block_packs), warp) * warp;
    const auto threads = static_cast<unsigned>(wanted < block_threads ? wanted : block_threads);
    norm_block<layer, T, N><<<static_cast<unsigned>(vectors), threads, 0, stream>>>(args);
  }
}

}  // namespace

cudaError_t launch_norm(const NormForward& args, cudaStream_t stream) {
  if (args.shape.vectors == 0 || args.shape.width == 0) return cudaSuccess;
  with_type(args.scalar, [&](auto zero) {
    using T = decltype(zero);
    const bool vectorized = aligned16<T>(args.x, args.x_stride) && aligned16<T>(args.y, args.y_stride) &&
                            aligned16<T>(args.weight, args.shape.width) && aligned16<T>(args.bias);
    with_pack<T>(vectorized, [&](auto pack) {
      constexpr int N = decltype(pack)::value;
      if (args.layer)
        launch_typed<true, T, N>(args, stream);
      else
        launch_typed<false, T, N>(args, stream);
    });
  });
  return cudaGetLastError();
}

}  // namespace tera::cuda::kernels
