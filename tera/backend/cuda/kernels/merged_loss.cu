#include "tera/backend/cuda/kernels/loss.cuh"
#include "tera/backend/cuda/kernels/softmax.cuh"

namespace tera::cuda::kernels {
namespace {

constexpr int loss_threads = 128;
constexpr int gradient_threads = 256, packs_per_thread = 4;  // loads in flight

struct Merged {
  Softmax softmax;
  float chosen;
};

// Shards are merged in their order. One whose columns are all padding has 0 as its sum and -inf as its maximum.
__device__ Merged merged(const MergedCrossEntropy& args, std::int64_t t) {
  const auto part = [&](std::int64_t p) { return args.stats + (p * args.rows + t) * 3; };
  float maximum = minus_infinity(), sum = 0.0f, chosen = 0.0f;
  for (std::int64_t p = 0; p < args.parts; ++p) maximum = fmaxf(maximum, part(p)[0]);
  const float shift = shift_of(maximum);
  for (std::int64_t p = 0; p < args.parts; ++p) {
    sum += part(p)[1] * exponential(part(p)[0], shift);
    chosen += part(p)[2];
  }
  return {{maximum, sum}, chosen};
}

__global__ void __launch_bounds__(loss_threads) merged_loss(MergedCrossEntropy args) {
  const std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * loss_threads + threadIdx.x;
  if (t >= args.rows) return;
  const Merged row = merged(args, t);
  args.token_loss[t] = args.targets[t] < 0 ? 0.0f : loss_of(row.softmax, row.chosen);
}

// Each logit becomes factor * e^(x - shift), that of the target at_target; nothing else of the row is needed.
struct Gradient {
  float shift, factor, at_target;
  std::int64_t used;           // columns; all others become 0
  std::int64_t target_column;  // negative: another shard's
};

__device__ Gradient gradient_of(const MergedCrossEntropy& args, std::int64_t t) {
  const std::int32_t target = args.targets[t];
  if (target < 0) return {0.0f, 0.0f, 0.0f, 0, -1};
  const Merged row = merged(args, t);
  const float scale = args.scale[0], shift = shift_of(row.softmax.maximum);
  const float factor = target < args.vocab ? scale / row.softmax.sum : broken_value();
  const float at_target = (exponential(row.chosen, shift) / row.softmax.sum - 1.0f) * scale;
  const std::int64_t column = target - args.first;
  return {shift, factor, at_target, args.used, column < args.used ? column : -1};
}

// A block takes a part of one row, each thread packs that lie gradient_threads apart. Their loads are issued before the
// row's gradient is known.
template <class T, int N>
__global__ void __launch_bounds__(gradient_threads) merged_gradient(MergedCrossEntropy args) {
  const std::int64_t t = blockIdx.x;
  T* x = static_cast<T*>(args.logits) + t * args.columns;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.y) * (gradient_threads * packs_per_thread);
  const auto column_of = [&](int u) { return (first + u * gradient_threads + threadIdx.x) * N; };
  Pack<T, N> packs[packs_per_thread];
#pragma unroll
  for (int u = 0; u < packs_per_thread; ++u)
    packs[u] = column_of(u) < args.used ? load<N>(x + column_of(u)) : filled<T, N>(0.0f);
  const Gradient gradient = gradient_of(args, t);
#pragma unroll
  for (int u = 0; u < packs_per_thread; ++u) {
    const std::int64_t column = column_of(u);
    if (column >= args.columns) continue;
    const int used = gradient.used - column < N ? static_cast<int>(gradient.used - column) : N;  // may be negative
    float value[N];
    unpack(packs[u], value);
#pragma unroll
    for (int j = 0; j < N; ++j) value[j] = j < used ? exponential(value[j], gradient.shift) * gradient.factor : 0.0f;
    store(x + column, packed<T>(value));
    // The thread that wrote the target's pack overwrites the element, so the writes are in order.
    if (gradient.target_column >= column && gradient.target_column < column + N)
      x[gradient.target_column] = from_float<T>(gradient.at_target);
  }
}

}  // namespace

cudaError_t launch_merged_cross_entropy(const MergedCrossEntropy& args, cudaStream_t stream) {
  if (args.rows == 0) return cudaSuccess;
  merged_loss<<<static_cast<unsigned>(divide_up(args.rows, loss_threads)), loss_threads, 0, stream>>>(args);
  if (args.loss_only) return cudaGetLastError();
  with_type(args.scalar, [&](auto zero) {
    using T = decltype(zero);
    with_pack<T>(aligned16<T>(args.logits, args.columns), [&](auto pack) {
      constexpr int N = decltype(pack)::value;
      const dim3 grid(static_cast<unsigned>(args.rows),
                      static_cast<unsigned>(divide_up(args.columns / N, gradient_threads * packs_per_thread)));
      merged_gradient<T, N><<<grid, gradient_threads, 0, stream>>>(args);
    });
  });
  return cudaGetLastError();
}

}  // namespace tera::cuda::kernels
