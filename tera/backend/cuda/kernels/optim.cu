#include "tera/backend/cuda/kernels/optim.cuh"

namespace tera::cuda::kernels {
namespace {

constexpr int threads = 256;

__global__ void __launch_bounds__(threads) clip(const Clip args) {
  __shared__ double staged[threads];
  double total = 0;  // the first thread's
  for (std::int64_t begin = 0; begin < args.n; begin += threads) {
    const std::int64_t i = begin + threadIdx.x;
    if (i < args.n) staged[threadIdx.x] = args.sums[i];
    __syncthreads();
    if (threadIdx.x == 0) {
      const int here = static_cast<int>(min(args.n - begin, static_cast<std::int64_t>(threads)));
      for (int j = 0; j < here; ++j) total += staged[j];
    }
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  const double scale = args.scale ? *args.scale : 1;
  const double norm = sqrt(total) / scale;
  const double ratio = args.max_norm / (norm + 1e-6);
  const float rounded = static_cast<float>(norm);
  *args.norm = rounded;
  if (!isfinite(rounded))
    *args.factor = __int_as_float(0x7fc00000);
  else
    *args.factor = static_cast<float>((args.max_norm == 0 || ratio >= 1 ? 1 : ratio) / scale);
}

__global__ void __launch_bounds__(threads) scale_loss(const ScaleLoss args) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (i < args.n) args.out[i] = static_cast<float>(static_cast<double>(args.x[i]) * *args.scale);
}

// Runs as one thread.
__global__ void count_step(const CountStep args) {
  const double next = *args.updates + 1;
  *args.lr = args.rates[*args.skipped != 0 ? 1 : 0];
  *args.correction1 = static_cast<float>(1 - pow(args.beta1, next));
  *args.correction2 = static_cast<float>(1 - pow(args.beta2, next));
  const bool skipped = !isfinite(*args.grad_factor);
  *args.skipped = skipped ? 1 : 0;
  if (!skipped) *args.updates = next;
  if (!args.dynamic) return;
  if (skipped) {
    *args.good_steps = 0;
    *args.hysteresis = fmax(*args.hysteresis - 1, 0.0);
    if (*args.hysteresis == 0) *args.scale = fmax(*args.scale / 2, args.min_scale);
    return;
  }
  *args.good_steps += 1;
  if (*args.good_steps < args.window) return;
  *args.good_steps = 0;
  *args.hysteresis = args.full_hysteresis;
  *args.scale = fmin(*args.scale * 2, args.max_scale);
}

template <class T, int N>
__device__ Pack<float, N> widened(const Pack<T, N>& pack) {
  Pack<float, N> wide;
#pragma unroll
  for (int j = 0; j < N; ++j) wide.value[j] = to_float(pack.value[j]);
  return wide;
}
template <class T, int N>
__device__ Pack<T, N> rounded(const Pack<float, N>& wide) {
  Pack<T, N> pack;
#pragma unroll
  for (int j = 0; j < N; ++j) pack.value[j] = from_float<T>(wide.value[j]);
  return pack;
}

// Stores the new weights and clears the gradient. Every input has been read before the first decision that waits for a
// scalar of the step, so that all loads are in flight at once.
template <class Copy, int N>
__device__ void put_weights(const Update& args, std::int64_t i, const Pack<float, N>& weight, bool apply) {
  if (apply) {
    store(args.weight + i, weight);
    if (args.copy) store(static_cast<Copy*>(args.copy) + i, rounded<Copy>(weight));
  }
  if (args.clear_grad) store(args.grad + i, Pack<float, N>{});
}

// Adam whose moments are stored as these types. Four of them in 16 bits are one access of 8 bytes, and a warp still
// moves whole stretches of memory with each.
template <class First, class Second>
struct StoredAdam : Adam {
  __device__ First* first() const { return static_cast<First*>(m); }
  __device__ Second* second() const { return static_cast<Second*>(v); }
};

// Updates N elements from i on.
template <class Copy, int N, class First, class Second>
__device__ void step(const StoredAdam<First, Second>& args, std::int64_t i) {
  const Pack<float, N> grad = load<N>(args.update.grad + i);
  Pack<float, N> weight = load<N>(args.update.weight + i), m = widened(load<N>(args.first() + i)),
                 v = widened(load<N>(args.second() + i));
  const float lr = *args.update.lr, factor = *args.update.grad_factor;
  const float unbias1 = 1.0f / *args.correction1, unbias2 = 1.0f / *args.correction2;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const float g = grad.value[j] * factor;
    m.value[j] = args.beta1 * m.value[j] + args.one_minus_beta1 * g;
    v.value[j] = args.beta2 * v.value[j] + args.one_minus_beta2 * g * g;
    const float direction = m.value[j] * unbias1 / (sqrtf(v.value[j] * unbias2) + args.eps);
    weight.value[j] -= lr * (direction + args.update.weight_decay * weight.value[j]);
  }
  const bool apply = isfinite(factor);
  if (apply) {
    store(args.first() + i, rounded<First>(m));
    store(args.second() + i, rounded<Second>(v));
  }
  put_weights<Copy, N>(args.update, i, weight, apply);
}

template <class Copy, int N>
__device__ void step(const Sgd& args, std::int64_t i) {
  const Pack<float, N> grad = load<N>(args.update.grad + i);
  Pack<float, N> weight = load<N>(args.update.weight + i), buffer{};
  if (args.momentum_buffer) buffer = load<N>(args.momentum_buffer + i);
  const float lr = *args.update.lr, factor = *args.update.grad_factor;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const float descent = grad.value[j] * factor + args.update.weight_decay * weight.value[j];
    buffer.value[j] = descent + args.momentum * buffer.value[j];
    weight.value[j] -= lr * buffer.value[j];
  }
  const bool apply = isfinite(factor);
  if (apply && args.momentum_buffer) store(args.momentum_buffer + i, buffer);
  put_weights<Copy, N>(args.update, i, weight, apply);
}

// One pack per thread; the last thread takes the remainder that does not fill one.
template <class Copy, int N, class Args>
__global__ void __launch_bounds__(threads, 5) update_all(const Args args) {
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x) * N;
  if (i + N <= args.update.n) {
    step<Copy, N>(args, i);
  } else {
    for (std::int64_t k = i; k < args.update.n; ++k) step<Copy, 1>(args, k);
  }
}

template <class Args>
cudaError_t launch_update(const Args& args, bool aligned, cudaStream_t stream) {
  if (args.update.n == 0) return cudaSuccess;
  constexpr int pack = 4;
  const std::int64_t per_block = threads * (aligned ? pack : 1);
  const auto grid = static_cast<unsigned>((args.update.n + per_block - 1) / per_block);
  with_type(args.update.copy_dtype, [&](auto zero) {
    using Copy = decltype(zero);
    if (aligned)
      update_all<Copy, pack><<<grid, threads, 0, stream>>>(args);
    else
      update_all<Copy, 1><<<grid, threads, 0, stream>>>(args);
  });
  return cudaGetLastError();
}

// launch(T{}) with the type that moments of this dtype are stored as.
template <class Launch>
auto with_moment_type(Scalar scalar, const Launch& launch) {
  return scalar == Scalar::bf16 ? launch(__nv_bfloat16{}) : launch(float{});
}

bool all_aligned(const Update& args) {
  return aligned16<float>(args.weight) && aligned16<float>(args.grad) && aligned16<float>(args.copy);
}

}  // namespace

cudaError_t launch_clip(const Clip& args, cudaStream_t stream) {
  clip<<<1, threads, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t launch_scale_loss(const ScaleLoss& args, cudaStream_t stream) {
  if (args.n == 0) return cudaSuccess;
  scale_loss<<<static_cast<unsigned>((args.n + threads - 1) / threads), threads, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t launch_count_step(const CountStep& args, cudaStream_t stream) {
  count_step<<<1, 1, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t launch_adam(const Adam& args, cudaStream_t stream) {
  const bool aligned = all_aligned(args.update) && aligned16<float>(args.m) && aligned16<float>(args.v);
  return with_moment_type(args.m_dtype, [&](auto first) {
    return with_moment_type(args.v_dtype, [&](auto second) {
      return launch_update(StoredAdam<decltype(first), decltype(second)>{args}, aligned, stream);
    });
  });
}

cudaError_t launch_sgd(const Sgd& args, cudaStream_t stream) {
  return launch_update(args, all_aligned(args.update) && aligned16<float>(args.momentum_buffer), stream);
}

}  // namespace tera::cuda::kernels
