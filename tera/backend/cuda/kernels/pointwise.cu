#include "tera/backend/cuda/kernels/pointwise.cuh"

#include "tera/backend/cuda/kernels/philox.cuh"
#include "tera/backend/cuda/kernels/rows.cuh"

namespace tera::cuda::kernels {
namespace {

__device__ float sigmoid(float x) { return reciprocal_approx(1.0f + exp2_approx(-log2_e * x)); }

// An activation gives its value and its derivative; what the caller does not use costs nothing.
struct Point {
  float value, slope;
};

// With the normal distribution's density and its integral, Abramowitz and Stegun 26.2.17 (7.5e-8 absolute): one
// exponential serves both.
struct Gelu {
  __device__ static Point at(float x) {
    const float density = 0.3989422804f * exp2_approx(-0.5f * log2_e * x * x);
    const float t = reciprocal_approx(1.0f + 0.2316419f * fabsf(x));
    float p = 1.330274429f;
    p = p * t - 1.821255978f;
    p = p * t + 1.781477937f;
    p = p * t - 0.356563782f;
    p = p * t + 0.319381530f;
    const float upper_tail = density * p * t, integral = x < 0.0f ? upper_tail : 1.0f - upper_tail;
    return {x * integral, integral + x * density};
  }
};

struct GeluTanh {
  __device__ static Point at(float x) {
    constexpr float two_root = 1.5957691216f, cubic = 0.044715f;  // 2 sqrt(2/pi)
    // (1 + tanh u) / 2 = sigmoid(2u), u = sqrt(2/pi) (x + cubic x^3)
    const float s = sigmoid(two_root * x * (1.0f + cubic * x * x));
    const float inner = two_root * (1.0f + 3.0f * cubic * x * x);
    // Far out s (1 - s) is zero while inner overflows; fminf keeps their product from being NaN.
    return {x * s, s + x * s * (1.0f - s) * fminf(inner, 1e30f)};
  }
};

struct SquaredRelu {
  __device__ static Point at(float x) {
    const float positive = x < 0.0f ? 0.0f : x;  // NaN stays
    return {positive * positive, 2.0f * positive};
  }
};

struct Silu {
  __device__ static Point at(float x) {
    const float s = sigmoid(x);
    return {x * s, s + x * s * (1.0f - s)};
  }
};

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

// Which of the N columns from `column` on are kept: word column % 4 of the counter (row id, column / 4).
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

template <class Launch>
auto with_curve(Curve curve, const Launch& launch) {
  switch (curve) {
    case Curve::gelu: return launch(Gelu{});
    case Curve::gelu_tanh: return launch(GeluTanh{});
    case Curve::squared_relu: return launch(SquaredRelu{});
    default: return launch(Silu{});
  }
}

// launch(Act{}, T{}, N) for the curve, the type and the pack size of this call.
template <class Args, class Launch>
void with_activation(const Args& args, const void* a, const void* b, const void* c, const Launch& launch) {
  with_curve(args.curve, [&](auto act) {
    with_type(args.scalar, [&](auto zero) {
      using T = decltype(zero);
      const bool whole = aligned16<T>(a, args.width) && aligned16<T>(b) && aligned16<T>(c);
      with_pack<T>(whole, [&](auto pack) { launch(act, zero, pack); });
    });
  });
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
    const bool whole = aligned16<T>(args.x, args.width) && aligned16<T>(args.y) && aligned16<T>(args.residual);
    with_pack<T>(whole, [&](auto pack) {
      constexpr int N = decltype(pack)::value;
      const dim3 grid = row_grid(args.rows, args.width / N, dropout_rows);
      dropout<T, N><<<grid, row_threads, 0, stream>>>(args);
    });
  });
  return cudaGetLastError();
}

}  // namespace tera::cuda::kernels
