#include "tera/backend/cuda/runtime/cuda_device.h"

#include "tera/backend/cuda/runtime/cuda_error.h"
#include "tera/base/gpu_limits.h"
#include "tera/base/host_memory.h"

namespace tera::cuda {
CudaDevice::CudaDevice(int index) : index_(index) { check(cudaSetDevice(index), "cudaSetDevice"); }

CudaDevice::~CudaDevice() {
  cudaSetDevice(index_);
  cudaDeviceSynchronize();
  for (void* slab : slabs_) cudaFree(slab);
  for (void* pinned : pinned_) cudaFreeHost(pinned);
}

std::span<std::byte> CudaDevice::allocate(std::size_t bytes) {
  if (bytes == 0) return {};
  void* slab = nullptr;
  slabs_.reserve(slabs_.size() + 1);
  check(cudaSetDevice(index_), "cudaSetDevice");
  const cudaError_t status = cudaMalloc(&slab, bytes);
  if (status == cudaErrorMemoryAllocation) {  // another program was faster, or memory is in pieces
    cudaGetLastError();
    fail_user("the GPU has no {} bytes left in one piece, though {} are free", bytes, available());
  }
  check(status, "cudaMalloc");
  slabs_.push_back(slab);
  check(cudaMemset(slab, 0, bytes), "cudaMemset");
  check(cudaDeviceSynchronize(), "cudaMemset");  // work on other streams may begin at once
  return {static_cast<std::byte*>(slab), bytes};
}

std::span<std::byte> CudaDevice::allocate_host(std::size_t bytes) {
  if (bytes == 0) return {};
  void* pinned = nullptr;
  pinned_.reserve(pinned_.size() + 1);
  const cudaError_t status = cudaHostAlloc(&pinned, bytes, cudaHostAllocDefault);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    fail_user(
        "the host cannot keep {} bytes in place for the GPU (pinned memory; `ulimit -l` may limit it), though {} are "
        "free; fewer model.offload_modules, or checkpoint.async_save=false, need less of it",
        bytes, host_available());
  }
  check(status, "cudaHostAlloc");
  pinned_.push_back(pinned);
  return {static_cast<std::byte*>(pinned), bytes};
}

std::size_t CudaDevice::available() const {
  std::size_t free = 0, total = 0;
  check(cudaSetDevice(index_), "cudaSetDevice");
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return free > gpu_reserved_bytes ? free - gpu_reserved_bytes : 0;
}

std::size_t CudaDevice::host_available() const { return available_host_memory(); }

}  // namespace tera::cuda
