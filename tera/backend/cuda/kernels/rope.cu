#include "tera/backend/cuda/kernels/rope.cuh"

#include "tera/backend/cuda/kernels/rows.cuh"

namespace tera::cuda::kernels {
namespace {

constexpr int max_threads = 128, heads_at_once = 2;

// Rotates the N pairs that lie in two packs: the j-th of each, or neighbours in first, then in second, when
// interleaved.
template <bool interleaved, int N>
__device__ void rotate(float (&first)[N], float (&second)[N], const float (&cos)[N], const float (&sin)[N]) {
  float channel[2 * N];
#pragma unroll
  for (int j = 0; j < N; ++j) {
    channel[j] = first[j];
    channel[N + j] = second[j];
  }
#pragma unroll
  for (int j = 0; j < N; ++j) {
    float& a = channel[interleaved ? 2 * j : j];
    float& b = channel[interleaved ? 2 * j + 1 : N + j];
    const float a_rotated = a * cos[j] - b * sin[j], b_rotated = b * cos[j] + a * sin[j];
    a = a_rotated;
    b = b_rotated;
  }
#pragma unroll
  for (int j = 0; j < N; ++j) {
    first[j] = channel[j];
    second[j] = channel[N + j];
  }
}

// cos and sin of pairs pair .. pair+N-1; sin is negated for the inverse. NaN where the position is outside the tables.
template <int N>
__device__ void load_angles(const Rope& args, std::int64_t position, int pair, float (&cos)[N], float (&sin)[N]) {
  if (position < 0 || position >= args.table_rows) {
#pragma unroll
    for (int j = 0; j < N; ++j) cos[j] = sin[j] = broken_value();
    return;
  }
  load_floats(args.cos + position * args.pairs + pair, cos);
  load_floats(args.sin + position * args.pairs + pair, sin);
  if (args.inverse) {
#pragma unroll
    for (int j = 0; j < N; ++j) sin[j] = -sin[j];
  }
}

// threadIdx.x: N pairs; y: heads, each thread takes every blockDim.y-th, so that angles are read once; z: rows.
template <bool interleaved, class T, int N>
__global__ void __launch_bounds__(max_threads) rope(Rope args) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.z + threadIdx.z;
  if (row >= args.rows) return;
  const std::int64_t position = args.positions[row];
  const int apart = interleaved ? N : args.pairs, head_step = static_cast<int>(blockDim.y);
  for (int pair = static_cast<int>(threadIdx.x) * N; pair < args.pairs; pair += static_cast<int>(blockDim.x) * N) {
    float cos[N], sin[N];
    T* x = static_cast<T*>(args.x) + row * args.stride + (interleaved ? 2 * pair : pair);
    for (int head = static_cast<int>(threadIdx.y); head < args.heads; head += heads_at_once * head_step) {
      Pack<T, N> firsts[heads_at_once], seconds[heads_at_once];
#pragma unroll
      for (int u = 0; u < heads_at_once; ++u) {
        const std::int64_t at = static_cast<std::int64_t>(head + u * head_step) * args.head_size;
        if (head + u * head_step >= args.heads) continue;
        firsts[u] = load<N>(x + at);
        seconds[u] = load<N>(x + at + apart);
      }
      // The angles are loaded after the first heads, whose loads shall not wait for the position.
      if (head == static_cast<int>(threadIdx.y)) load_angles<N>(args, position, pair, cos, sin);
#pragma unroll
      for (int u = 0; u < heads_at_once; ++u) {
        const std::int64_t at = static_cast<std::int64_t>(head + u * head_step) * args.head_size;
        if (head + u * head_step >= args.heads) continue;
        float first[N], second[N];
        unpack(firsts[u], first);
        unpack(seconds[u], second);
        rotate<interleaved>(first, second, cos, sin);
        store(x + at, packed<T>(first));
        store(x + at + apart, packed<T>(second));
      }
    }
  }
}

// Few threads per row, several rows per block: a thread then has `heads_at_once` heads to load at a time.
dim3 rope_block(const Rope& args, int pack) {
  constexpr int per_row = 64, max_z = 64;
  const auto smaller = [](int a, int b) { return a < b ? a : b; };
  const int packs = args.pairs / pack, x = smaller(packs, per_row);
  const int y = smaller(args.heads, per_row / x);
  return {static_cast<unsigned>(x), static_cast<unsigned>(y),
          static_cast<unsigned>(smaller(max_threads / (x * y), max_z))};
}

}  // namespace

cudaError_t launch_rope(const Rope& args, cudaStream_t stream) {
  if (args.rows == 0 || args.heads == 0 || args.pairs == 0) return cudaSuccess;
  with_type(args.scalar, [&](auto zero) {
    using T = decltype(zero);
    constexpr int wide = 16 / static_cast<int>(sizeof(T));
    const bool vectorized = aligned16<T>(args.x, args.stride) && args.head_size % wide == 0 && args.pairs % wide == 0 &&
                            aligned16<float>(args.cos) && aligned16<float>(args.sin);
    with_pack<T>(vectorized, [&](auto pack) {
      constexpr int N = decltype(pack)::value;
      const dim3 block = rope_block(args, N);
      const auto grid = static_cast<unsigned>(divide_up(args.rows, block.z));
      if (args.interleaved)
        rope<true, T, N><<<grid, block, 0, stream>>>(args);
      else
        rope<false, T, N><<<grid, block, 0, stream>>>(args);
    });
  });
  return cudaGetLastError();
}

}  // namespace tera::cuda::kernels
