#include "tera/backend/cuda/kernels/loss.cuh"

#include "tera/backend/cuda/kernels/rows.cuh"

namespace tera::cuda::kernels {
namespace {

constexpr int most_threads = 1024, packs_at_once = 4;

__device__ float minus_infinity() { return __int_as_float(0xff800000); }

// sum of e^(x - most) over the values seen so far, most being the largest of them.
struct Softmax {
  float most, sum;
};

// What to subtract in exponents: with nothing but -inf seen, -inf - -inf would be NaN.
__device__ float shift_of(float most) { return most == minus_infinity() ? 0.0f : most; }

// e^(x - shift). The difference comes first: it is exact for the values that matter, next to the largest.
__device__ float exponential(float x, float shift) { return exp2_approx((x - shift) * log2_e); }

// fmaxf leaves NaN out; it comes back through the exponentials.
template <int U, int N>
__device__ void include(Softmax& softmax, const float (&x)[U][N]) {
  float most = softmax.most;
#pragma unroll
  for (int u = 0; u < U; ++u)
#pragma unroll
    for (int j = 0; j < N; ++j) most = fmaxf(most, x[u][j]);
  const float shift = shift_of(most);
  float sum = softmax.sum * exponential(softmax.most, shift);
#pragma unroll
  for (int u = 0; u < U; ++u)
#pragma unroll
    for (int j = 0; j < N; ++j) sum += exponential(x[u][j], shift);
  softmax = {most, sum};
}

// Of a row: full packs of columns that take part, and where the others begin.
template <class T, int N>
struct Row {
  T* x;
  std::int64_t columns, vocab;
  int full;          // packs that lie inside the vocabulary
  int thread, step;  // this thread's packs: thread, thread + step, ...
};

// First sweep: packs_at_once loads at a time; what fits stays in shared memory, where each thread reads back only what
// it wrote itself.
template <class T, int N>
__device__ Softmax sweep(const Row<T, N>& row, Pack<T, N>* kept, int kept_packs) {
  Softmax softmax{minus_infinity(), 0.0f};
  for (int base = row.thread; base < row.full; base += packs_at_once * row.step) {
    Pack<T, N> packs[packs_at_once];
    float x[packs_at_once][N];
#pragma unroll
    for (int u = 0; u < packs_at_once; ++u) {
      const int i = base + u * row.step;
      if (i < row.full)
        packs[u] = load<N>(row.x + static_cast<std::int64_t>(i) * N);
      else
        packs[u] = filled<T, N>(minus_infinity());  // adds nothing
    }
#pragma unroll
    for (int u = 0; u < packs_at_once; ++u) {
      const int i = base + u * row.step;
      unpack(packs[u], x[u]);
      if (i < row.full && i < kept_packs) kept[i] = packs[u];
    }
    include(softmax, x);
  }
  if (row.thread != row.full % row.step) return softmax;
  for (std::int64_t column = static_cast<std::int64_t>(row.full) * N; column < row.vocab; ++column) {
    const float x[1][1] = {{to_float(row.x[column])}};  // the part of a pack before the vocabulary's end
    include(softmax, x);
  }
  return softmax;
}

// The whole block's; shared holds 32 values.
__device__ Softmax combine(Softmax mine, float* shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  float most = warp_max(mine.most);
  if (lane == 0) shared[warp] = most;
  __syncthreads();
  most = warp_max(lane < static_cast<int>(blockDim.x) / 32 ? shared[lane] : minus_infinity());
  return {most, block_sum(mine.sum * exponential(mine.most, shift_of(most)), shared)};
}

// Second sweep: each logit becomes factor * e^(x - shift).
template <class T, int N>
__device__ void write_gradient(const Row<T, N>& row, const Pack<T, N>* kept, int kept_packs, float shift,
                               float factor) {
  for (int base = row.thread; base < row.full; base += packs_at_once * row.step) {
    Pack<T, N> packs[packs_at_once];
#pragma unroll
    for (int u = 0; u < packs_at_once; ++u) {
      const int i = base + u * row.step;
      if (i < row.full) packs[u] = i < kept_packs ? kept[i] : load<N>(row.x + static_cast<std::int64_t>(i) * N);
    }
#pragma unroll
    for (int u = 0; u < packs_at_once; ++u) {
      const int i = base + u * row.step;
      if (i >= row.full) continue;
      float value[N];
      unpack(packs[u], value);
#pragma unroll
      for (int j = 0; j < N; ++j) value[j] = exponential(value[j], shift) * factor;
      store(row.x + static_cast<std::int64_t>(i) * N, packed<T>(value));
    }
  }
  // What is left of a pack at the vocabulary's end, and the padding behind it.
  for (std::int64_t i = row.full + (row.thread - row.full % row.step + row.step) % row.step; i * N < row.columns;
       i += row.step) {
    float value[N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const std::int64_t column = i * N + j;
      value[j] = column < row.vocab ? exponential(to_float(row.x[column]), shift) * factor : 0.0f;
    }
    store(row.x + i * N, packed<T>(value));
  }
}

template <class T, int N>
__device__ void clear(const Row<T, N>& row) {
  for (std::int64_t i = row.thread; i * N < row.columns; i += row.step) store(row.x + i * N, filled<T, N>(0.0f));
}

// One block per row.
template <bool loss_only, class T, int N>
__global__ void __launch_bounds__(most_threads) cross_entropy(CrossEntropy args) {
  extern __shared__ uint4 memory[];
  __shared__ float scratch[32];
  auto* kept = reinterpret_cast<Pack<T, N>*>(memory);
  const std::int64_t t = blockIdx.x;
  const Row<T, N> row{.x = static_cast<T*>(args.logits) + t * args.columns,
                      .columns = args.columns,
                      .vocab = args.vocab,
                      .full = static_cast<int>(args.vocab / N),
                      .thread = static_cast<int>(threadIdx.x),
                      .step = static_cast<int>(blockDim.x)};
  const std::int32_t target = args.targets[t];
  if (target < 0) {
    if (threadIdx.x == 0) args.token_loss[t] = 0.0f;
    if constexpr (!loss_only) clear(row);
    return;
  }
  // Read before any thread writes its gradient: every write is behind the barriers of combine().
  const float chosen = target < args.vocab ? to_float(row.x[target]) : broken_value();
  const Softmax softmax = combine(sweep(row, kept, args.kept_packs), scratch);
  const float shift = shift_of(softmax.most);
  if (threadIdx.x == 0) {
    const double off = static_cast<double>(softmax.most) - static_cast<double>(chosen);
    args.token_loss[t] = static_cast<float>(log(static_cast<double>(softmax.sum)) + off);
  }
  if constexpr (!loss_only) {
    const float scale = args.scale[0], factor = target < args.vocab ? scale / softmax.sum : broken_value();
    write_gradient(row, kept, args.kept_packs, shift, factor);
    // By the thread that wrote the target's pack, so in order.
    if (target < args.vocab && target / N % row.step == row.thread)
      row.x[target] = from_float<T>((exponential(chosen, shift) / softmax.sum - 1.0f) * scale);
  }
}

// Large rows take a whole multiprocessor's shared memory and threads; small ones share it.
int threads_for(std::int64_t packs) { return packs > 8192 ? most_threads : packs > 1024 ? 512 : 128; }

// Packs of a row that shared memory keeps. Results do not depend on it, only the traffic does.
cudaError_t shared_packs(std::int64_t packs, std::int64_t pack_bytes, int& kept) {
  constexpr int scratch_bytes = 1024;
  int device = 0, most = 0;
  if (const cudaError_t status = cudaGetDevice(&device); status != cudaSuccess) return status;
  const cudaError_t status = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (status != cudaSuccess) return status;
  const std::int64_t room = (most - scratch_bytes) / pack_bytes;
  kept = static_cast<int>(packs < room ? packs : room);
  return cudaSuccess;
}

template <class T, int N>
cudaError_t launch_typed(CrossEntropy args, cudaStream_t stream) {
  const std::int64_t packs = args.vocab / N;
  const int threads = threads_for(packs);
  const auto blocks = static_cast<unsigned>(args.rows);
  args.kept_packs = 0;
  if (args.loss_only) {
    cross_entropy<true, T, N><<<blocks, threads, 0, stream>>>(args);
    return cudaGetLastError();
  }
  constexpr int pack_bytes = static_cast<int>(sizeof(Pack<T, N>));
  if (const cudaError_t status = shared_packs(packs, pack_bytes, args.kept_packs); status != cudaSuccess) return status;
  const int bytes = args.kept_packs * pack_bytes;
  const auto kernel = cross_entropy<false, T, N>;
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (status != cudaSuccess) return status;
  kernel<<<blocks, threads, static_cast<std::size_t>(bytes), stream>>>(args);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_cross_entropy(const CrossEntropy& args, cudaStream_t stream) {
  if (args.rows == 0) return cudaSuccess;
  return with_type(args.scalar, [&](auto zero) {
    using T = decltype(zero);
    return with_pack<T>(aligned16<T>(args.logits, args.columns),
                        [&](auto pack) { return launch_typed<T, decltype(pack)::value>(args, stream); });
  });
}

}  // namespace tera::cuda::kernels
