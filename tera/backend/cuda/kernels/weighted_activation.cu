// Activations of experts' rows, fused with routing weights. They have kernels of their own because a row may be padding
// or left alone, which the dense kernels need not check.

#include "tera/backend/cuda/kernels/activation_curves.cuh"

namespace tera::cuda::kernels {
namespace {

constexpr int forward_rows = 2;  // per thread: loads in flight

enum class RowIs : std::uint8_t { weighted, zeros, left_alone, broken };

__device__ RowIs kind_of(std::int32_t source, std::int64_t choices) {
  if (source == -1) return RowIs::zeros;
  if (source < 0) return RowIs::left_alone;
  return source < choices ? RowIs::weighted : RowIs::broken;
}

template <class Act, bool gated, class T, int N>
__global__ void __launch_bounds__(row_threads) weighted_activation(WeightedActivation all) {
  const ActivationForward& args = all.activation;
  const RowWeights& of_rows = all.of_rows;
  const std::int64_t width = args.width, x_width = gated ? 2 * width : width;
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.x) * row_threads + threadIdx.x) * N;
  if (column >= width) return;
  const T* x = static_cast<const T*>(args.x) + column;
  T* y = static_cast<T*>(args.y) + column;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.y) * forward_rows;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * forward_rows; row < args.rows; row += step) {
    RowIs kinds[forward_rows];
    float weights[forward_rows];
    Pack<T, N> gates[forward_rows], ups[forward_rows];
#pragma unroll
    for (int u = 0; u < forward_rows; ++u) {
      const std::int32_t source = row + u < args.rows ? of_rows.sources[row + u] : -2;
      kinds[u] = kind_of(source, of_rows.choices);
      if (kinds[u] != RowIs::weighted) continue;
      weights[u] = of_rows.weights[source];
      gates[u] = load<N>(x + (row + u) * x_width);
      if constexpr (gated) ups[u] = load<N>(x + (row + u) * x_width + width);
    }
#pragma unroll
    for (int u = 0; u < forward_rows; ++u) {
      if (kinds[u] == RowIs::left_alone) continue;
      Pack<T, N> result = filled<T, N>(kinds[u] == RowIs::zeros ? 0.0f : broken_value());
      if (kinds[u] == RowIs::weighted) {
        float value[N], up[N];
        unpack(gates[u], value);
        if constexpr (gated) unpack(ups[u], up);
#pragma unroll
        for (int j = 0; j < N; ++j) {
          value[j] = Act::at(value[j]).value;
          if constexpr (gated) value[j] *= up[j];
          value[j] *= weights[u];
        }
        result = packed<T>(value);
      }
      store(y + (row + u) * width, result);
    }
  }
}

// A block handles one row, since a weight's gradient is a sum over its row. dx may be x: a thread reads what it needs
// of its columns before it writes them.
template <class Act, bool gated, class T, int N>
__global__ void __launch_bounds__(row_threads) weighted_activation_back(WeightedActivationBack all) {
  __shared__ float sums[32];
  const ActivationBackward& args = all.activation;
  const std::int64_t row = blockIdx.x, width = args.width, x_width = gated ? 2 * width : width;
  const std::int32_t source = all.of_rows.sources[row];
  const RowIs kind = kind_of(source, all.of_rows.choices);
  if (kind == RowIs::left_alone) return;
  const T* dy = static_cast<const T*>(args.dy) + row * width;
  const T* x = static_cast<const T*>(args.x) + row * x_width;
  T* dx = static_cast<T*>(args.dx) + row * x_width;
  const std::int64_t first = static_cast<std::int64_t>(threadIdx.x) * N;
  if (kind != RowIs::weighted) {
    const Pack<T, N> fill = filled<T, N>(kind == RowIs::zeros ? 0.0f : broken_value());
    for (std::int64_t column = first; column < x_width; column += row_threads * N) store(dx + column, fill);
    return;
  }
  const float weight = all.of_rows.weights[source];
  float dweight = 0;
  for (std::int64_t column = first; column < width; column += row_threads * N) {
    float grad[N], gate[N], up[N];
    unpack(load<N>(dy + column), grad);
    unpack(load<N>(x + column), gate);
    if constexpr (gated) unpack(load<N>(x + width + column), up);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const Point point = Act::at(gate[j]);
      dweight += grad[j] * (gated ? point.value * up[j] : point.value);
      const float weighted_grad = weight * grad[j];
      gate[j] = weighted_grad * (gated ? up[j] * point.slope : point.slope);
      up[j] = weighted_grad * point.value;
    }
    store(dx + column, packed<T>(gate));
    if constexpr (gated) store(dx + width + column, packed<T>(up));
  }
  dweight = block_sum(dweight, sums);
  if (threadIdx.x == 0) all.dweights[source] = dweight;
}

}  // namespace

cudaError_t launch_weighted_activation(const WeightedActivation& args, cudaStream_t stream) {
  const ActivationForward& forward = args.activation;
  if (forward.rows == 0 || forward.width == 0) return cudaSuccess;
  with_activation(forward, forward.x, forward.y, nullptr, [&](auto act, auto zero, auto pack) {
    using Act = decltype(act);
    using T = decltype(zero);
    constexpr int N = decltype(pack)::value;
    const dim3 grid = row_grid(forward.rows, forward.width / N, forward_rows);
    const auto kernel = forward.gated ? weighted_activation<Act, true, T, N> : weighted_activation<Act, false, T, N>;
    kernel<<<grid, row_threads, 0, stream>>>(args);
  });
  return cudaGetLastError();
}

cudaError_t launch_weighted_activation_back(const WeightedActivationBack& args, cudaStream_t stream) {
  const ActivationBackward& backward = args.activation;
  if (backward.rows == 0) return cudaSuccess;
  with_activation(backward, backward.x, backward.dy, backward.dx, [&](auto act, auto zero, auto pack) {
    using Act = decltype(act);
    using T = decltype(zero);
    constexpr int N = decltype(pack)::value;
    const auto grid = static_cast<unsigned>(backward.rows);
    const auto kernel =
        backward.gated ? weighted_activation_back<Act, true, T, N> : weighted_activation_back<Act, false, T, N>;
    kernel<<<grid, row_threads, 0, stream>>>(args);
  });
  return cudaGetLastError();
}

}  // namespace tera::cuda::kernels
