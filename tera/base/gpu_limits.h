#pragma once
// What is true of every GPU that the CUDA backend takes; known everywhere, so that any machine can plan for one.

#include <cstddef>
#include <cstdint>

namespace tera {

// What the driver, cuBLASLt and cuDNN take for themselves after the plan is bound (kernels, handles).
inline constexpr std::size_t gpu_bytes_kept_free = std::size_t{1} << 30;

inline constexpr std::int64_t largest_gpu_head = 256;  // channels of a head of attention

}  // namespace tera
