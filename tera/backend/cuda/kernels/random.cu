#include <algorithm>

#include "tera/backend/cuda/kernels/philox.cuh"
#include "tera/backend/cuda/kernels/random.cuh"

namespace tera::cuda::kernels {
namespace {

constexpr int threads = 256;
constexpr std::int64_t most_blocks = 4096;

// Uniform in (0, 1): never zero, so that its logarithm is finite.
__device__ double open_uniform(std::uint32_t bits) { return (static_cast<double>(bits) + 0.5) * 0x1p-32; }

// A thread makes the four draws of one counter, by Box-Muller in double, as the host does.
template <class T>
__global__ void draw_normals(T* out, std::int64_t elements, std::uint64_t seed, float std) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * threads;
  for (std::int64_t block = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x; block * 4 < elements;
       block += step) {
    const uint4 bits = philox(seed, static_cast<std::uint64_t>(block), 0);
    const double radius0 = sqrt(-2.0 * log(open_uniform(bits.x))), radius1 = sqrt(-2.0 * log(open_uniform(bits.z)));
    double sin0, cos0, sin1, cos1;
    sincospi(2.0 * open_uniform(bits.y), &sin0, &cos0);
    sincospi(2.0 * open_uniform(bits.w), &sin1, &cos1);
    const float draws[4] = {static_cast<float>(radius0 * cos0), static_cast<float>(radius0 * sin0),
                            static_cast<float>(radius1 * cos1), static_cast<float>(radius1 * sin1)};
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (block * 4 + i < elements) out[block * 4 + i] = from_float<T>(std * draws[i]);
  }
}

}  // namespace

cudaError_t launch_normal(const Normal& args, cudaStream_t stream) {
  if (args.elements == 0) return cudaSuccess;
  const std::int64_t blocks = std::min((args.elements + 4 * threads - 1) / (4 * threads), most_blocks);
  with_type(args.type, [&](auto zero) {
    using T = decltype(zero);
    draw_normals<<<static_cast<unsigned>(blocks), threads, 0, stream>>>(static_cast<T*>(args.out), args.elements,
                                                                        args.seed, args.std);
  });
  return cudaGetLastError();
}

}  // namespace tera::cuda::kernels
