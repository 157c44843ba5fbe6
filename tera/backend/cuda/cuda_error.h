#pragma once
// Every CUDA call is checked: check(cudaMalloc(...), "cudaMalloc").

#include <cuda_runtime_api.h>

#include "tera/base/error.h"

namespace tera::cuda {

inline void check(cudaError_t status, const char* what) {
  require(status == cudaSuccess, "{}: {} ({})", what, cudaGetErrorString(status), cudaGetErrorName(status));
}

}  // namespace tera::cuda
