#pragma once
#include "tera/backend/cuda/kernels/types.cuh"

namespace tera::cuda::kernels {

enum class Element : std::uint8_t { f32, bf16, f16, f64, i32, i64 };
enum class Combine : std::uint8_t { sum, mean, max };

// out[i] = the reduction of all sources[..][i], in their order.
struct CombineLaunch {
  static constexpr int max_sources = 256;
  const void* sources[max_sources];
  int number;
  void* out;
  std::int64_t n;
  Element element;
  Combine how;
};

cudaError_t launch_combine(const CombineLaunch& launch, cudaStream_t stream);

}  // namespace tera::cuda::kernels
