#pragma once
// Limits of all GPUs that the CUDA backend supports, in base so that a machine without a GPU can plan for one.

#include <cstddef>
#include <cstdint>

namespace tera {

// Memory reserved for the driver, cuBLASLt and cuDNN, which allocate after the plan is bound (kernels, handles).
inline constexpr std::size_t gpu_reserved_bytes = std::size_t{1} << 30;

inline constexpr std::int64_t max_gpu_head_size = 256;  // channels of a head of attention

}  // namespace tera
