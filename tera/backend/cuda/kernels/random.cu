#include <algorithm>

#include "tera/backend/cuda/kernels/philox.cuh"
#include "tera/backend/cuda/kernels/random.cuh"

namespace tera::cuda::kernels {
namespace {

constexpr int threads = 256;
constexpr std::int64_t max_blocks = 4096;

// Uniform in (0, 1): never zero, so that its logarithm is finite.
__device__ double open_uniform(std::uint32_t bits) { return (static_cast<double>(bits) + 0.5) * 0x1p-32; }

// Counters that a row's draws may come from: its first draw is one of a counter's four.
__host__ __device__ std::int64_t counters_per_row(std::int64_t columns) { return (columns + 3) / 4 + 1; }

// A thread makes the four draws of one counter, by Box-Muller in double, as the host does.
template <class T>
__global__ void draw_normals(Normal args) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * threads, counters = counters_per_row(args.columns);
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x; i < args.rows * counters;
       i += step) {
    const std::int64_t row = i / counters, first = args.first + row * args.row_stride;
    const std::int64_t counter = first / 4 + i % counters,
                       column = counter * 4 - first;  // the first of the four draws'
    if (column >= args.columns) continue;
    const uint4 bits = philox(args.seed, static_cast<std::uint64_t>(counter), 0);
    const double radius0 = sqrt(-2.0 * log(open_uniform(bits.x))), radius1 = sqrt(-2.0 * log(open_uniform(bits.z)));
    double sin0, cos0, sin1, cos1;
    sincospi(2.0 * open_uniform(bits.y), &sin0, &cos0);
    sincospi(2.0 * open_uniform(bits.w), &sin1, &cos1);
    const float draws[4] = {static_cast<float>(radius0 * cos0), static_cast<float>(radius0 * sin0),
                            static_cast<float>(radius1 * cos1), static_cast<float>(radius1 * sin1)};
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (column + j >= 0 && column + j < args.columns)
        static_cast<T*>(args.out)[row * args.columns + column + j] = from_float<T>(args.std * draws[j]);
  }
}

}  // namespace

cudaError_t launch_normal(const Normal& args, cudaStream_t stream) {
  const std::int64_t blocks =
      std::min((args.rows * counters_per_row(args.columns) + threads - 1) / threads, max_blocks);
  with_type(args.type, [&](auto zero) {
    using T = decltype(zero);
    draw_normals<T><<<static_cast<unsigned>(blocks), threads, 0, stream>>>(args);
  });
  return cudaGetLastError();
}

}  // namespace tera::cuda::kernels
