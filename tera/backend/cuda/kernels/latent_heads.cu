// Heads of multi-head latent attention (MLA). A warp moves a head: the source of channels is looked up once per pack.

#include "tera/backend/cuda/kernels/latent_heads.cuh"

#include "tera/backend/cuda/kernels/rows.cuh"

namespace tera::cuda::kernels {
namespace {

constexpr int block_warps = 8, block_threads = 32 * block_warps;

__device__ std::int64_t number_of_warp() {
  return static_cast<std::int64_t>(blockIdx.x) * block_warps + threadIdx.x / 32;
}
template <int N>
__device__ int first_channel() {
  return static_cast<int>(threadIdx.x % 32) * N;
}

template <class T, int N>
__global__ void __launch_bounds__(block_threads) latent_heads(LatentHeads args) {
  const std::int64_t number = number_of_warp();  // row * heads + head
  if (number >= args.rows * args.heads) return;
  const T* kv = static_cast<const T*>(args.kv) + number * (args.nope + args.values);
  const T* rotary = static_cast<const T*>(args.rotary) + number / args.heads * args.rotary_stride;
  T* k = static_cast<T*>(args.k) + number * args.head;
  T* v = static_cast<T*>(args.v) + number * args.head;
  for (int channel = first_channel<N>(); channel < args.head; channel += 32 * N) {
    store(k + channel, channel < args.nope ? load<N>(kv + channel) : load<N>(rotary + channel - args.nope));
    store(v + channel, channel < args.values ? load<N>(kv + args.nope + channel) : filled<T, N>(0.0f));
  }
}

template <class T, int N>
__global__ void __launch_bounds__(block_threads) latent_heads_back(LatentHeads args) {
  const std::int64_t number = number_of_warp();
  if (number >= args.rows * args.heads) return;
  const T* dk = static_cast<const T*>(args.k) + number * args.head;
  const T* dv = static_cast<const T*>(args.v) + number * args.head;
  T* dkv = static_cast<T*>(args.kv) + number * (args.nope + args.values);
  for (int channel = first_channel<N>(); channel < args.nope + args.values; channel += 32 * N)
    store(dkv + channel, channel < args.nope ? load<N>(dk + channel) : load<N>(dv + channel - args.nope));
}

// A thread has N channels of one row, and adds them up over its heads in order.
template <class T, int N>
__global__ void __launch_bounds__(block_threads) sum_heads(LatentHeads args) {
  const int rotary = args.head - args.nope, packs = rotary / N;
  const std::int64_t number = static_cast<std::int64_t>(blockIdx.x) * block_threads + threadIdx.x;
  const std::int64_t row = number / packs;
  if (row >= args.rows) return;
  const int channel = static_cast<int>(number - row * packs) * N;
  const T* dk = static_cast<const T*>(args.k) + row * args.heads * args.head + args.nope + channel;
  float sum[N] = {};
#pragma unroll 4
  for (int head = 0; head < args.heads; ++head) {
    float value[N];
    unpack(load<N>(dk + static_cast<std::int64_t>(head) * args.head), value);
#pragma unroll
    for (int j = 0; j < N; ++j) sum[j] += value[j];
  }
  store(static_cast<T*>(args.rotary) + row * args.rotary_stride + channel, packed<T>(sum));
}

// No pack has channels of two kinds, and all of them are aligned.
template <class T>
bool only_full_packs(const LatentHeads& args) {
  constexpr int wide = 16 / static_cast<int>(sizeof(T));
  return aligned16<T>(args.kv) && aligned16<T>(args.rotary, args.rotary_stride) && aligned16<T>(args.k) &&
         aligned16<T>(args.v) && args.head % wide == 0 && args.nope % wide == 0 && args.values % wide == 0;
}

unsigned blocks_for(std::int64_t items, int per_block) { return static_cast<unsigned>(divide_up(items, per_block)); }

}  // namespace

cudaError_t launch_latent_heads(const LatentHeads& args, cudaStream_t stream) {
  if (args.rows == 0 || args.heads == 0 || args.head == 0) return cudaSuccess;
  with_type(args.scalar, [&](auto zero) {
    using T = decltype(zero);
    with_pack<T>(only_full_packs<T>(args), [&](auto pack) {
      latent_heads<T, decltype(pack)::value>
          <<<blocks_for(args.rows * args.heads, block_warps), block_threads, 0, stream>>>(args);
    });
  });
  return cudaGetLastError();
}

cudaError_t launch_latent_heads_back(const LatentHeads& args, cudaStream_t stream) {
  if (args.rows == 0) return cudaSuccess;
  with_type(args.scalar, [&](auto zero) {
    using T = decltype(zero);
    with_pack<T>(only_full_packs<T>(args), [&](auto pack) {
      constexpr int N = decltype(pack)::value;
      const std::int64_t copied = args.nope + args.values > 0 ? args.rows * args.heads : 0;
      const std::int64_t summed = args.rows * ((args.head - args.nope) / N);
      if (copied > 0) latent_heads_back<T, N><<<blocks_for(copied, block_warps), block_threads, 0, stream>>>(args);
      if (summed > 0) sum_heads<T, N><<<blocks_for(summed, block_threads), block_threads, 0, stream>>>(args);
    });
  });
  return cudaGetLastError();
}

}  // namespace tera::cuda::kernels
