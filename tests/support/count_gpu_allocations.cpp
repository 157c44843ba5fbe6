#include "tests/support/count_gpu_allocations.h"

#include <cuda_runtime_api.h>

#include <atomic>

namespace {
std::atomic<std::int64_t> calls{0};
}

std::int64_t tera::test::gpu_allocations() { return calls; }

// The linker's names: calls of f go to __wrap_f, and __real_f is f.
// NOLINTBEGIN(bugprone-reserved-identifier)
extern "C" {
cudaError_t __real_cudaMalloc(void** memory, std::size_t bytes);
cudaError_t __real_cudaMallocAsync(void** memory, std::size_t bytes, cudaStream_t stream);
cudaError_t __real_cudaMallocHost(void** memory, std::size_t bytes);
cudaError_t __real_cudaHostAlloc(void** memory, std::size_t bytes, unsigned flags);

cudaError_t __wrap_cudaMalloc(void** memory, std::size_t bytes) {
  ++calls;
  return __real_cudaMalloc(memory, bytes);
}
cudaError_t __wrap_cudaMallocAsync(void** memory, std::size_t bytes, cudaStream_t stream) {
  ++calls;
  return __real_cudaMallocAsync(memory, bytes, stream);
}
cudaError_t __wrap_cudaMallocHost(void** memory, std::size_t bytes) {
  ++calls;
  return __real_cudaMallocHost(memory, bytes);
}
cudaError_t __wrap_cudaHostAlloc(void** memory, std::size_t bytes, unsigned flags) {
  ++calls;
  return __real_cudaHostAlloc(memory, bytes, flags);
}
}
// NOLINTEND(bugprone-reserved-identifier)
