#pragma once
// Proves that code built for this program's architectures runs on a given GPU.

#include <cuda_runtime_api.h>

namespace tera::cuda::kernels {

// cudaSuccess when a kernel ran on the device and its result came back right.
cudaError_t probe(int device);

}  // namespace tera::cuda::kernels
