#pragma once
// Launches persistent kernels in thread block clusters of two: as many clusters as run at once, one block per
// multiprocessor.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

namespace tera::cuda::kernels {

template <class Plan>
cudaError_t launch_cluster_pairs(void (*kernel)(Plan), const Plan& plan, int threads, int bytes, std::int64_t max_pairs,
                                 cudaStream_t stream) {
  int device = 0, processors = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess) status = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (status == cudaSuccess) status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (status != cudaSuccess) return status;
  const std::int64_t pairs = std::clamp<std::int64_t>(processors / 2, 1, std::max<std::int64_t>(max_pairs, 1));
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = 2;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(pairs * 2));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(bytes);
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, plan);
}

}  // namespace tera::cuda::kernels
