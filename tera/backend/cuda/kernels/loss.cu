#include "tera/backend/cuda/kernels/loss.cuh"

#include "tera/backend/cuda/kernels/softmax.cuh"

namespace tera::cuda::kernels {
namespace {

// Fused cross-entropy: an online softmax, then the gradient in place. A persistent block takes one row after the other;
// pack i of a row is always thread i % threads'. Packs go in pairs. Between the two sweeps over a row the last pairs
// are kept in shared memory, one in registers; the first ones, of rows that are too long, are read twice. As soon as a
// pair has been used, its buffer prefetches one of the block's next row (cp.async), so loads never stop. Results do not
// depend on how many pairs are kept where: pairs are added up in order.
constexpr int max_threads = 1024, max_kept_pairs = 7;

// fmaxf leaves NaN out; it comes back through the exponentials.
template <int U, int N>
__device__ void include(Softmax& softmax, const float (&x)[U][N]) {
  float maximum = softmax.maximum;
#pragma unroll
  for (int u = 0; u < U; ++u)
#pragma unroll
    for (int j = 0; j < N; ++j) maximum = fmaxf(maximum, x[u][j]);
  const float shift = shift_of(maximum);
  float sum = softmax.sum * exponential(softmax.maximum, shift);
#pragma unroll
  for (int u = 0; u < U; ++u)
#pragma unroll
    for (int j = 0; j < N; ++j) sum += exponential(x[u][j], shift);
  softmax = {maximum, sum};
}

// A row of logits, as this thread sees it.
template <class T, int N>
struct Row {
  T* x;
  std::int64_t columns, vocab;
  int full;          // packs that lie inside the vocabulary
  int thread, step;  // this thread's packs: thread, thread + step, ...
  int pairs, kept;   // pairs of packs; how many of them shared memory keeps

  __device__ int pack(int pair, int u) const { return thread + (2 * pair + u) * step; }
  __device__ T* at(std::int64_t pack) const { return x + pack * N; }
  __device__ int first_kept() const { return pairs - kept; }
  __device__ int cached() const { return first_kept() - 1; }  // the pair in registers; none if negative
};

template <class T, int N>
using Pair = Pack<T, N>[2];

// Packs that are not there add nothing.
template <class T, int N>
__device__ void load_pair(const Row<T, N>& row, int pair, Pair<T, N>& packs) {
#pragma unroll
  for (int u = 0; u < 2; ++u) {
    const int i = row.pack(pair, u);
    packs[u] = i < row.full ? load<N>(row.at(i)) : filled<T, N>(minus_infinity());
  }
}

// Reads a pair that shared memory keeps: each thread reads only what it copied itself.
template <class T, int N>
__device__ void read_kept(const Row<T, N>& row, int group, const Pack<T, N>* kept, Pair<T, N>& packs) {
#pragma unroll
  for (int u = 0; u < 2; ++u) {
    const bool there = row.pack(row.first_kept() + group, u) < row.full;
    packs[u] = there ? kept[(2 * group + u) * row.step + row.thread] : filled<T, N>(minus_infinity());
  }
}
template <class T, int N>
__device__ void start_copy(const Row<T, N>& row, int group, Pack<T, N>* kept) {
  if constexpr (sizeof(Pack<T, N>) == 16) {  // smaller packs are not kept
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      const int i = row.pack(row.first_kept() + group, u);
      if (group >= row.kept || i >= row.full) continue;
      ptx::cp_async_16_prefetch_128(kept + (2 * group + u) * row.step + row.thread, row.at(i));
    }
  }
}
// Every row has max_kept_pairs groups of copies, some of them empty: the number to wait for is then a constant.
__device__ void end_group() { ptx::cp_async_commit_group(); }
__device__ void wait_for_oldest_group() { ptx::cp_async_wait_group<max_kept_pairs - 1>(); }

template <class T, int N>
__device__ void start_row(const Row<T, N>& row, Pack<T, N>* kept, Pair<T, N>& cached) {
  for (int group = 0; group < max_kept_pairs; ++group) {
    start_copy(row, group, kept);
    end_group();
  }
  if (row.cached() >= 0) load_pair(row, row.cached(), cached);
}

template <class T, int N>
__device__ void include_pair(Softmax& softmax, const Pair<T, N>& packs) {
  float x[2][N];
  unpack(packs[0], x[0]);
  unpack(packs[1], x[1]);
  include(softmax, x);
}

// First sweep. It calls after(group) when the group's buffer in shared memory may be refilled for the next row.
template <class T, int N, class After>
__device__ Softmax sweep(const Row<T, N>& row, const Pack<T, N>* kept, const Pair<T, N>& cached, const After& after) {
  Softmax softmax{minus_infinity(), 0.0f};
  for (int pair = 0; pair < row.cached(); ++pair) {
    Pair<T, N> packs;
    load_pair(row, pair, packs);
    include_pair<T, N>(softmax, packs);
  }
  if (row.cached() >= 0) include_pair<T, N>(softmax, cached);
#pragma unroll 1
  for (int group = 0; group < max_kept_pairs; ++group) {
    wait_for_oldest_group();
    if (group < row.kept) {
      Pair<T, N> packs;
      read_kept(row, group, kept, packs);
      include_pair<T, N>(softmax, packs);
    }
    after(group);
    end_group();
  }
  if (row.thread != row.full % row.step) return softmax;
  for (std::int64_t column = static_cast<std::int64_t>(row.full) * N; column < row.vocab; ++column) {
    const float x[1][1] = {{to_float(row.x[column])}};  // the part of a pack before the vocabulary's end
    include(softmax, x);
  }
  return softmax;
}

// The block's softmax; shared holds 32 values, and is not read any more when the next call but one begins.
__device__ Softmax combine(Softmax mine, Softmax* shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const auto over_warp = [](Softmax part) -> Softmax {
    const float maximum = warp_max(part.maximum);
    return {maximum, warp_sum(part.sum * exponential(part.maximum, shift_of(maximum)))};
  };
  mine = over_warp(mine);
  if (lane == 0) shared[warp] = mine;
  __syncthreads();
  return over_warp(lane < static_cast<int>(blockDim.x) / 32 ? shared[lane] : Softmax{minus_infinity(), 0.0f});
}

// Second sweep: each logit becomes factor * e^(x - shift).
struct Gradient {
  float shift, factor;
};

template <class T, int N>
__device__ void write_pair(const Row<T, N>& row, int pair, const Pair<T, N>& packs, Gradient gradient) {
#pragma unroll
  for (int u = 0; u < 2; ++u) {
    const int i = row.pack(pair, u);
    if (i >= row.full) continue;
    float value[N];
    unpack(packs[u], value);
#pragma unroll
    for (int j = 0; j < N; ++j) value[j] = exponential(value[j], gradient.shift) * gradient.factor;
    store(row.at(i), packed<T>(value));
  }
}

// The rest of a pack at the vocabulary's end, and the padding after it.
template <class T, int N>
__device__ void write_end(const Row<T, N>& row, Gradient gradient) {
  for (std::int64_t i = row.full + (row.thread - row.full % row.step + row.step) % row.step; i * N < row.columns;
       i += row.step) {
    float value[N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const std::int64_t column = i * N + j;
      const bool counts = column < row.vocab;
      value[j] = counts ? exponential(to_float(row.x[column]), gradient.shift) * gradient.factor : 0.0f;
    }
    store(row.at(i), packed<T>(value));
  }
}

template <class T, int N, class After>
__device__ void write_gradient(const Row<T, N>& row, const Pack<T, N>* kept, Gradient gradient, const After& after) {
#pragma unroll 1
  for (int group = 0; group < max_kept_pairs; ++group) {
    if (group < row.kept) {
      Pair<T, N> packs;
      read_kept(row, group, kept, packs);
      write_pair<T, N>(row, row.first_kept() + group, packs, gradient);
    }
    after(group);
    end_group();
  }
  for (int pair = 0; pair < row.cached(); ++pair) {
    Pair<T, N> packs;
    load_pair(row, pair, packs);
    write_pair<T, N>(row, pair, packs, gradient);
  }
  write_end(row, gradient);
}

template <class T, int N>
__device__ void clear(const Row<T, N>& row) {
  for (std::int64_t i = row.thread; i * N < row.columns; i += row.step) store(row.at(i), filled<T, N>(0.0f));
}

// The target's logit. Stats hold 0 for one that lies in another vocabulary shard.
template <Wanted wanted, class T, int N>
__device__ float chosen_logit(const CrossEntropy& args, const Row<T, N>& row, std::int32_t target) {
  if constexpr (wanted == Wanted::stats) {
    const std::int64_t column = target - args.first;
    if (target >= args.all_parts_vocab) return broken_value();
    return column >= 0 && column < args.vocab ? to_float(row.x[column]) : 0.0f;
  }
  return target < args.vocab ? to_float(row.x[target]) : broken_value();
}

template <Wanted wanted>
__device__ void write_result(const CrossEntropy& args, std::int64_t t, Softmax softmax, float chosen) {
  if (threadIdx.x != 0) return;
  if constexpr (wanted == Wanted::stats) {
    args.result[3 * t] = softmax.maximum;
    args.result[3 * t + 1] = softmax.sum;
    args.result[3 * t + 2] = chosen;
  } else {
    args.result[t] = loss_of(softmax, chosen);
  }
}

template <Wanted wanted, class T, int N>
__device__ void skip_row(const CrossEntropy& args, const Row<T, N>& row, std::int64_t t) {
  if constexpr (wanted == Wanted::stats)
    write_result<wanted>(args, t, {minus_infinity(), 0.0f}, 0.0f);
  else if (threadIdx.x == 0)
    args.result[t] = 0.0f;
  if constexpr (wanted == Wanted::gradient) clear(row);
}

template <Wanted wanted, class T, int N>
__global__ void __launch_bounds__(max_threads) cross_entropy(CrossEntropy args) {
  constexpr bool reads_only = wanted != Wanted::gradient;
  extern __shared__ uint4 memory[];
  __shared__ Softmax shared[2][32];
  auto* kept = reinterpret_cast<Pack<T, N>*>(memory);
  const int threads = static_cast<int>(blockDim.x), full = static_cast<int>(args.vocab / N);
  Row<T, N> row{.x = static_cast<T*>(args.logits) + blockIdx.x * args.columns,
                .columns = args.columns,
                .vocab = args.vocab,
                .full = full,
                .thread = static_cast<int>(threadIdx.x),
                .step = threads,
                .pairs = (full + 2 * threads - 1) / (2 * threads),
                .kept = args.kept_pairs};
  Pair<T, N> cached;
  bool started = false;  // this row's loads
  int rows_done = 0;     // rows so far
  std::int32_t target = args.targets[blockIdx.x];
  for (std::int64_t t = blockIdx.x; t < args.rows; t += gridDim.x) {
    const std::int32_t next_target = t + gridDim.x < args.rows ? args.targets[t + gridDim.x] : -1;
    Row<T, N> next = row;
    next.x += gridDim.x * args.columns;
    if (target < 0) {
      skip_row<wanted>(args, row, t);
      started = false;
    } else {
      if (!started) start_row(row, kept, cached);
      const auto refill = [&](int group) {
        if (next_target >= 0) start_copy(next, group, kept);
      };
      const auto no_refill = [](int) {};
      // Read before any thread writes its gradient: every write comes after the barrier of combine().
      const float chosen = chosen_logit<wanted>(args, row, target);
      Softmax softmax;
      if constexpr (reads_only)
        softmax = sweep(row, kept, cached, refill);
      else
        softmax = sweep(row, kept, cached, no_refill);
      softmax = combine(softmax, shared[rows_done++ % 2]);
      write_result<wanted>(args, t, softmax, chosen);
      const float shift = shift_of(softmax.maximum);
      const float scale = reads_only ? 0.0f : args.scale[0];
      const Gradient gradient{shift, target < args.vocab ? scale / softmax.sum : broken_value()};
      if (!reads_only && row.cached() >= 0) write_pair<T, N>(row, row.cached(), cached, gradient);
      if (next_target >= 0 && row.cached() >= 0) load_pair(next, row.cached(), cached);
      if constexpr (!reads_only) {
        write_gradient(row, kept, gradient, refill);
        // The thread that wrote the target's pack overwrites the element, so the writes are in order.
        if (target < args.vocab && target / N % row.step == row.thread)
          row.x[target] = from_float<T>((exponential(chosen, shift) / softmax.sum - 1.0f) * scale);
      }
      started = next_target >= 0;
    }
    row = next;
    target = next_target;
  }
}

// A block of large rows takes all of a multiprocessor's shared memory and threads; blocks of small ones share it.
int threads_for(std::int64_t packs) { return packs > 8192 ? max_threads : packs > 1024 ? 512 : 128; }

struct Launch {
  int threads, blocks, kept_pairs;
};

// A persistent grid: as many blocks as are resident at a time.
cudaError_t plan(std::int64_t rows, std::int64_t packs, Launch& launch) {
  constexpr int scratch_bytes = 1024, pair_bytes = 2 * 16 * max_threads;
  int device = 0, memory = 0, multiprocessors = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess) status = cudaDeviceGetAttribute(&memory, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (status == cudaSuccess) status = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (status != cudaSuccess) return status;
  launch.threads = threads_for(packs);
  const std::int64_t blocks = std::int64_t{multiprocessors} * (max_threads / launch.threads);
  launch.blocks = static_cast<int>(rows < blocks ? rows : blocks);
  const std::int64_t pairs = divide_up(packs, 2 * launch.threads);
  const int max_pairs = (memory - max_threads / launch.threads * scratch_bytes) / pair_bytes;
  const int maximum = max_pairs < max_kept_pairs ? max_pairs : max_kept_pairs;
  launch.kept_pairs = static_cast<int>(pairs < maximum ? pairs : maximum);
  return cudaSuccess;
}

template <Wanted wanted, class T, int N>
cudaError_t launch_typed(CrossEntropy args, cudaStream_t stream) {
  Launch launch;
  if (const cudaError_t status = plan(args.rows, args.vocab / N, launch); status != cudaSuccess) return status;
  constexpr int pack_bytes = static_cast<int>(sizeof(Pack<T, N>));
  args.kept_pairs = pack_bytes == 16 ? launch.kept_pairs : 0;
  const int bytes = args.kept_pairs * 2 * pack_bytes * launch.threads;
  const auto kernel = cross_entropy<wanted, T, N>;
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (status != cudaSuccess) return status;
  kernel<<<static_cast<unsigned>(launch.blocks), static_cast<unsigned>(launch.threads), static_cast<std::size_t>(bytes),
           stream>>>(args);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_cross_entropy(const CrossEntropy& args, cudaStream_t stream) {
  if (args.rows == 0) return cudaSuccess;
  return with_type(args.scalar, [&](auto zero) {
    using T = decltype(zero);
    return with_pack<T>(aligned16<T>(args.logits, args.columns), [&](auto pack) {
      constexpr int N = decltype(pack)::value;
      switch (args.wanted) {
        case Wanted::stats: return launch_typed<Wanted::stats, T, N>(args, stream);
        case Wanted::loss: return launch_typed<Wanted::loss, T, N>(args, stream);
        default: return launch_typed<Wanted::gradient, T, N>(args, stream);
      }
    });
  });
}

}  // namespace tera::cuda::kernels
