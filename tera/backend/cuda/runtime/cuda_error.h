#pragma once
// Every CUDA call is checked: check(cudaMalloc(...), "cudaMalloc").

#include <cuda_runtime_api.h>

#include "tera/base/error.h"

namespace tera::cuda {

inline void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) cudaGetLastError();  // reported here, so that the next launch does not report it
  require(status == cudaSuccess, "{}: {} ({})", what, cudaGetErrorString(status), cudaGetErrorName(status));
}

}  // namespace tera::cuda
