#include "tera/backend/cuda/kernels/probe.cuh"

namespace tera::cuda::kernels {
namespace {

constexpr int threads = 64;

__global__ void write_squares(int* out) { out[threadIdx.x] = static_cast<int>(threadIdx.x * threadIdx.x); }

cudaError_t run_and_compare(int* on_device) {
  cudaGetLastError();  // clears the error of an earlier call, which has reported it
  write_squares<<<1, threads>>>(on_device);
  if (const cudaError_t status = cudaGetLastError(); status != cudaSuccess) return status;
  int result[threads] = {};
  if (const cudaError_t status = cudaMemcpy(result, on_device, sizeof(result), cudaMemcpyDeviceToHost);
      status != cudaSuccess)
    return status;
  for (int i = 0; i < threads; ++i)
    if (result[i] != i * i) return cudaErrorUnknown;
  return cudaSuccess;
}

}  // namespace

cudaError_t probe(int device) {
  if (const cudaError_t status = cudaSetDevice(device); status != cudaSuccess) return status;
  int* on_device = nullptr;
  if (const cudaError_t status = cudaMalloc(&on_device, threads * sizeof(int)); status != cudaSuccess) return status;
  const cudaError_t status = run_and_compare(on_device);
  cudaFree(on_device);
  return status;
}

}  // namespace tera::cuda::kernels
