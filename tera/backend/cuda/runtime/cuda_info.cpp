#include "tera/backend/cuda/runtime/cuda_info.h"

#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include "tera/backend/cuda/kernels/probe.cuh"
#include "tera/backend/cuda/libraries/cublaslt_api.h"
#include "tera/backend/cuda/libraries/cudnn_attention.h"
#include "tera/backend/cuda/runtime/gpu_facts.h"

namespace tera::cuda {
namespace {

// CUDA writes 13.0 as 13000.
std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

GpuInfo query_gpu(int device, bool probe) {
  GpuInfo info;
  cudaDeviceProp properties{};
  if (const cudaError_t status = cudaGetDeviceProperties(&properties, device); status != cudaSuccess) {
    info.problem = cudaGetErrorString(status);
    return info;
  }
  info.name = properties.name;
  info.major = properties.major;
  info.minor = properties.minor;
  info.memory_bytes = properties.totalGlobalMem;
  if (!probe) return info;
  const cudaError_t status = kernels::probe(device);
  if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction)
    info.problem = no_kernels_for(TERA_CUDA_ARCHITECTURES, info.major, info.minor);
  else if (status != cudaSuccess)
    info.problem = cudaGetErrorString(status);
  return info;
}

}  // namespace

std::string toolkit_version() { return version_text(CUDART_VERSION); }

CudaLibraries query_libraries() {
  return {.cublaslt = cublaslt_version(), .cudnn = cudnn_version(), .cudnn_built_in = TERA_CUDNN_BUILT_IN};
}

CudaInfo query_cuda(std::optional<int> probe_only) {
  CudaInfo info;
  info.built_in = true;
  info.toolkit = toolkit_version();
  info.architectures = TERA_CUDA_ARCHITECTURES;
  int driver = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0) info.driver = version_text(driver);
  int count = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&count); status != cudaSuccess) {
    info.problem = info.driver.empty() ? "no NVIDIA driver on this machine"
                                       : fmt::format("{} (built with CUDA {}, the driver serves {})",
                                                     cudaGetErrorString(status), info.toolkit, info.driver);
    return info;
  }
  for (int device = 0; device < count; ++device)
    info.gpus.push_back(query_gpu(device, probe_only.value_or(device) == device));
  return info;
}

}  // namespace tera::cuda
