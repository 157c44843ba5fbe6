#pragma once
// CUDA C++ for a compiler of C++. The build includes it before everything else in a .cu file that translate.cpp has
// rewritten.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <type_traits>
#include <utility>

#include "tools/cuda_on_cpu/block.h"
#include "tools/cuda_on_cpu/intrinsics.h"
#include "tools/cuda_on_cpu/shared_memory.h"
#include "tools/cuda_on_cpu/stream.h"
#include "tools/cuda_on_cpu/warp.h"

// After CUDA's own headers, which would look for nvcc's builtins: our kernels' headers show their device code.
#define __CUDACC__ 1
#undef __shared__
#undef __global__
#undef __device__
#undef __host__
#undef __launch_bounds__
#undef __grid_constant__
#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)
#define __grid_constant__

// One block runs at a time, so that all its threads see one static variable; they lie in one section, see
// shared_memory.h. The functions that declare them have internal linkage: others would share a section of their own.
#define __shared__ static __attribute__((section("cuda_on_cpu_shared")))
#define __syncthreads() ::cuda_on_cpu::sync_block(0, 0, ::cuda_on_cpu::Where::current())

// Set by the linker; absent where a library has no kernels.
extern "C" __attribute__((weak, visibility("hidden"))) unsigned char __start_cuda_on_cpu_shared[];
extern "C" __attribute__((weak, visibility("hidden"))) unsigned char __stop_cuda_on_cpu_shared[];

namespace cuda_on_cpu {
namespace {

[[maybe_unused]] const bool shared_section_known = [] {
  if (__start_cuda_on_cpu_shared) add_shared_section(__start_cuda_on_cpu_shared, __stop_cuda_on_cpu_shared);
  return true;
}();

}  // namespace

struct Config {
  dim3 grid, block;
  std::size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
};

inline Config config(dim3 grid, dim3 block, std::size_t shared_bytes = 0, cudaStream_t stream = nullptr) {
  return {grid, block, shared_bytes, stream};
}

// kernel<<<grid, block, shared, stream>>>(args...) is translated to launch(config(grid, ...), "kernel",
// kernel)(args...). `call` is the kernel, or a lambda that calls it where arguments of its template follow from those
// of the call.
template <class Call>
auto launch(const Config& config, const char* name, const Call& call) {
  return [&config, name, &call](const auto&... args) {
    const std::decay_t<Call> kernel = call;
    Launch launched{config.grid, config.block, config.shared_bytes, [kernel, args...] { kernel(args...); }, name};
    if constexpr (std::is_pointer_v<std::decay_t<Call>>) launched.function = reinterpret_cast<const void*>(kernel);
    enqueue_kernel(config.stream, std::move(launched));
  };
}

}  // namespace cuda_on_cpu

// The attribute of programmatic dependent launch (PDL) changes no result, and is ignored; thread block clusters are not
// emulated.
template <class... Parameters, class... Args>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...), const Args&... args) {
  for (unsigned i = 0; i < config->numAttrs; ++i)
    if (config->attrs[i].id == cudaLaunchAttributeClusterDimension) return cudaErrorNotSupported;
  cuda_on_cpu::launch({config->gridDim, config->blockDim, config->dynamicSmemBytes, config->stream},
                      __PRETTY_FUNCTION__, kernel)(args...);
  return cudaGetLastError();
}
template <class Result, class... Parameters>
cudaError_t cudaFuncSetAttribute(Result (*kernel)(Parameters...), cudaFuncAttribute attribute, int value) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}
template <class Result, class... Parameters>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, Result (*kernel)(Parameters...)) {
  return cudaFuncGetAttributes(attributes, reinterpret_cast<const void*>(kernel));
}
