#pragma once
// Philox 4x32-10 on the device: the same words as tera/base/rng.h gives for the same key and counter, so a mask drawn
// here is the mask drawn on the host.

#include <cuda_runtime_api.h>

#include <cstdint>

#ifdef __CUDACC__
namespace tera::cuda::kernels {

// Four independent words for one counter value; word w of them is .x, .y, .z, .w.
__device__ inline uint4 philox(std::uint64_t key, std::uint64_t counter_low, std::uint64_t counter_high) {
  auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  auto c0 = static_cast<std::uint32_t>(counter_low), c1 = static_cast<std::uint32_t>(counter_low >> 32);
  auto c2 = static_cast<std::uint32_t>(counter_high), c3 = static_cast<std::uint32_t>(counter_high >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c0, p1 = std::uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<std::uint32_t>(p1);
    c2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<std::uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return make_uint4(c0, c1, c2, c3);
}

// Uniform in [0, 1), 24 bits; exact, so the host's comparison with a rate gives the same answer.
__device__ inline float uniform_from_bits(std::uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1p-24f; }

}  // namespace tera::cuda::kernels
#endif
