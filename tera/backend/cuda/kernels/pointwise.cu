#include "tera/backend/cuda/kernels/pointwise.cuh"

#include "tera/backend/cuda/kernels/activation_curves.cuh"
#include "tera/backend/cuda/kernels/philox.cuh"

namespace tera::cuda::kernels {
namespace {

constexpr int forward_rows = 4, backward_rows = 2, dropout_rows = 2;  // per thread: loads in flight

template <class Act, bool gated, class T, int N>
__global__ void __launch_bounds__(row_threads) activation(ActivationForward args) {
  const std::int64_t width = args.width, x_width = gated ? 2 * width : width;
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.x) * row_threads + threadIdx.x) * N;
  if (column >= width) return;
  const T* x = static_cast<const T*>(args.x) + column;
  T* y = static_cast<T*>(args.y) + column;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.y) * forward_rows;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * forward_rows; row < args.rows; row += step) {
    Pack<T, N> gates[forward_rows], ups[forward_rows];
#pragma unroll
    for (int u = 0; u < forward_rows; ++u) {
      if (row + u >= args.rows) continue;
      gates[u] = load<N>(x + (row + u) * x_width);
      if constexpr (gated) ups[u] = load<N>(x + (row + u) * x_width + width);
    }
#pragma unroll
    for (int u = 0; u < forward_rows; ++u) {
      if (row + u >= args.rows) continue;
      float value[N], up[N];
      unpack(gates[u], value);
      if constexpr (gated) unpack(ups[u], up);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        value[j] = Act::at(value[j]).value;
        if constexpr (gated) value[j] *= up[j];
      }
      store(y + (row + u) * width, packed<T>(value));
    }
  }
}

// dx may be x: a thread reads all it needs of its rows before it writes them.
template <class Act, bool gated, class T, int N>
__global__ void __launch_bounds__(row_threads) activation_back(ActivationBackward args) {
  const std::int64_t width = args.width, x_width = gated ? 2 * width : width;
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.x) * row_threads + threadIdx.x) * N;
  if (column >= width) return;
  const T* x = static_cast<const T*>(args.x) + column;
  const T* dy = static_cast<const T*>(args.dy) + column;
  T* dx = static_cast<T*>(args.dx) + column;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.y) * backward_rows;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * backward_rows; row < args.rows; row += step) {
    Pack<T, N> grads[backward_rows], gates[backward_rows], ups[backward_rows];
#pragma unroll
    for (int u = 0; u < backward_rows; ++u) {
      if (row + u >= args.rows) continue;
      grads[u] = load<N>(dy + (row + u) * width);
      gates[u] = load<N>(x + (row + u) * x_width);
      if constexpr (gated) ups[u] = load<N>(x + (row + u) * x_width + width);
    }
#pragma unroll
    for (int u = 0; u < backward_rows; ++u) {
      if (row + u >= args.rows) continue;
      float grad[N], gate[N], up[N];
      unpack(grads[u], grad);
      unpack(gates[u], gate);
      if constexpr (gated) unpack(ups[u], up);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const Point point = Act::at(gate[j]);
        gate[j] = grad[j] * (gated ? up[j] * point.slope : point.slope);
        up[j] = grad[j] * point.value;
      }
      store(dx + (row + u) * x_width, packed<T>(gate));
      if constexpr (gated) store(dx + (row + u) * x_width + width, packed<T>(up));
    }
  }
}

// Draws which of the N columns from `column` on are kept: Philox word column % 4 of the counter (row id, column / 4).
template <int N>
__device__ void draw_kept(const Dropout& args, std::int64_t row_id, std::int64_t column, bool (&kept)[N]) {
  const auto row = static_cast<std::uint64_t>(row_id), block = static_cast<std::uint64_t>(column / 4);
  if constexpr (N == 1) {
    const uint4 drawn = philox(args.key, row, block);
    const int word = static_cast<int>(column % 4);
    const std::uint32_t bits = word == 0 ? drawn.x : word == 1 ? drawn.y : word == 2 ? drawn.z : drawn.w;
    kept[0] = bits >= args.least_kept;
  } else {
    static_assert(N % 4 == 0);
#pragma unroll
    for (int j = 0; j < N; j += 4) {
      const uint4 drawn = philox(args.key, row, block + j / 4);
      kept[j] = drawn.x >= args.least_kept;
      kept[j + 1] = drawn.y >= args.least_kept;
      kept[j + 2] = drawn.z >= args.least_kept;
      kept[j + 3] = drawn.w >= args.least_kept;
    }
  }
}

template <class T, int N>
__global__ void __launch_bounds__(row_threads) dropout(Dropout args) {
  const std::int64_t width = args.width;
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.x) * row_threads + threadIdx.x) * N;
  if (column >= width) return;
  const T* x = static_cast<const T*>(args.x) + column;
  const T* residual = args.residual ? static_cast<const T*>(args.residual) + column : nullptr;
  T* y = static_cast<T*>(args.y) + column;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.y) * dropout_rows;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * dropout_rows; row < args.rows; row += step) {
    Pack<T, N> inputs[dropout_rows], residuals[dropout_rows];
    std::int64_t ids[dropout_rows];
#pragma unroll
    for (int u = 0; u < dropout_rows; ++u) {
      if (row + u >= args.rows) continue;
      ids[u] = args.row_ids[row + u];
      inputs[u] = load<N>(x + (row + u) * width);
      if (residual) residuals[u] = load<N>(residual + (row + u) * width);
    }
#pragma unroll
    for (int u = 0; u < dropout_rows; ++u) {
      if (row + u >= args.rows) continue;
      bool kept[N];
      draw_kept<N>(args, ids[u], column, kept);
      float value[N], add[N];
      unpack(inputs[u], value);
#pragma unroll
      for (int j = 0; j < N; ++j) value[j] = kept[j] ? value[j] * args.kept : 0.0f;  // a dropped infinity is dropped
      if (residual) {
        unpack(residuals[u], add);
#pragma unroll
        for (int j = 0; j < N; ++j) value[j] += add[j];
      }
      store(y + (row + u) * width, packed<T>(value));
    }
  }
}

}  // namespace

cudaError_t launch_activation(const ActivationForward& args, cudaStream_t stream) {
  if (args.rows == 0 || args.width == 0) return cudaSuccess;
  with_activation(args, args.x, args.y, nullptr, [&](auto act, auto zero, auto pack) {
    using Act = decltype(act);
    using T = decltype(zero);
    constexpr int N = decltype(pack)::value;
    const dim3 grid = row_grid(args.rows, args.width / N, forward_rows);
    if (args.gated)
      activation<Act, true, T, N><<<grid, row_threads, 0, stream>>>(args);
    else
      activation<Act, false, T, N><<<grid, row_threads, 0, stream>>>(args);
  });
  return cudaGetLastError();
}

cudaError_t launch_activation_back(const ActivationBackward& args, cudaStream_t stream) {
  if (args.rows == 0 || args.width == 0) return cudaSuccess;
  with_activation(args, args.x, args.dy, args.dx, [&](auto act, auto zero, auto pack) {
    using Act = decltype(act);
    using T = decltype(zero);
    constexpr int N = decltype(pack)::value;
    const dim3 grid = row_grid(args.rows, args.width / N, backward_rows);
    if (args.gated)
      activation_back<Act, true, T, N><<<grid, row_threads, 0, stream>>>(args);
    else
      activation_back<Act, false, T, N><<<grid, row_threads, 0, stream>>>(args);
  });
  return cudaGetLastError();
}

cudaError_t launch_dropout(const Dropout& args, cudaStream_t stream) {
  if (args.rows == 0 || args.width == 0) return cudaSuccess;
  with_type(args.scalar, [&](auto zero) {
    using T = decltype(zero);
    const bool vectorized = aligned16<T>(args.x, args.width) && aligned16<T>(args.y) && aligned16<T>(args.residual);
    with_pack<T>(vectorized, [&](auto pack) {
      constexpr int N = decltype(pack)::value;
      const dim3 grid = row_grid(args.rows, args.width / N, dropout_rows);
      dropout<T, N><<<grid, row_threads, 0, stream>>>(args);
    });
  });
  return cudaGetLastError();
}

}  // namespace tera::cuda::kernels
