#pragma once
// Programmatic dependent launch (PDL): a kernel that finishes what the one before it began is launched while that one
// still runs: the gap between two kernels, some microseconds, is as long as a small kernel itself. In code compiled for
// Hopper or later; else a plain launch.
//
//   begins<<<grid, threads, 0, stream>>>(args);            calls pdl_trigger() first
//   pdl_launch<finishes>(grid, threads, stream, args);     calls pdl_wait() first

#include <cuda_runtime_api.h>

#ifdef __CUDACC__
namespace tera::cuda::kernels {

// Lets the dependent kernel's blocks be scheduled beside the blocks of this one, once all of these have triggered.
__device__ inline void pdl_trigger() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

// Returns when the primary kernel has ended and what it wrote can be read.
__device__ inline void pdl_wait() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

// Whether the kernel's pdl_wait() was compiled in. PTX for an older architecture, which a driver compiles for a new
// GPU, has none.
template <class Args>
bool has_pdl_wait(void (*kernel)(Args)) {
  cudaFuncAttributes code{};
  return cudaFuncGetAttributes(&code, kernel) == cudaSuccess && code.ptxVersion >= 90 && code.binaryVersion >= 90;
}

template <auto kernel, class Args>
cudaError_t pdl_launch(dim3 grid, int threads, cudaStream_t stream, const Args& args) {
  static const bool uses_pdl = has_pdl_wait(kernel);  // one answer for every GPU of a process
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = uses_pdl ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, args);
}

}  // namespace tera::cuda::kernels
#endif
