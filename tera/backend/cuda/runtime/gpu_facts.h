#pragma once
// What can be said of a GPU from its name and from what query_cuda() found. Pure C++: tested on any machine.

#include <string>
#include <string_view>

#include "tera/backend/cuda/runtime/cuda_info.h"

namespace tera::cuda {

// Peak dense bf16 FLOP/s by NVIDIA's data sheets; 0: not known, as for parts with other clocks or a slice of a GPU
// (MIG).
double peak_flops_of(std::string_view gpu);

// Why none of our kernels runs on a GPU of this compute capability. architectures: CudaInfo's.
std::string no_kernels_for(std::string_view architectures, int major, int minor);

// Why the first GPU cannot be used, or the driver gives none; empty when it can, and where there is neither.
std::string why_gpu_is_left_aside(const CudaInfo& info, const CudaLibraries& libraries);

}  // namespace tera::cuda
