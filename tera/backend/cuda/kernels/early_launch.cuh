#pragma once
// A kernel that finishes what the one before it began, started while that one still runs: the gap between two kernels,
// some microseconds, is as long as a small kernel itself. In code compiled for Hopper or later; else a plain launch.
//
//   begins<<<grid, threads, 0, stream>>>(args);                    calls let_next_start() first
//   launch_early<finishes>(grid, threads, stream, args);           calls wait_for_kernel_before() first

#include <cuda_runtime_api.h>

#ifdef __CUDACC__
namespace tera::cuda::kernels {

// The next kernel's blocks may take the room that the blocks of this one, all of them running, leave.
__device__ inline void let_next_start() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

// Returns when the kernel before has ended and what it wrote can be read.
__device__ inline void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

// Whether the kernel's wait was compiled in. PTX for an older architecture, which a driver compiles for a new GPU, has
// none.
template <class Args>
bool waits(void (*kernel)(Args)) {
  cudaFuncAttributes code{};
  return cudaFuncGetAttributes(&code, kernel) == cudaSuccess && code.ptxVersion >= 90 && code.binaryVersion >= 90;
}

template <auto kernel, class Args>
cudaError_t launch_early(dim3 grid, int threads, cudaStream_t stream, const Args& args) {
  static const bool starts_early = waits(kernel);  // the same on every GPU of a process
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = starts_early ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, args);
}

}  // namespace tera::cuda::kernels
#endif
