#pragma once
// The arithmetic of reductions over ranks.

#include <nccl.h>

#include <cstddef>
#include <span>

namespace cuda_on_cpu::nccl {

std::size_t size_of(ncclDataType_t type);  // 0: none that we know
const char* name_of(ncclDataType_t type);
const char* name_of(ncclRedOp_t op);  // null: none that we know

// result[i] = parts[0][i] + parts[1][i] + ..., rounded to the type after each addition, as NCCL does. A mean is a sum
// of what was divided before; the maximum of a number and a NaN is whatever the order of ranks makes of it.
void combine(ncclDataType_t type, ncclRedOp_t op, std::span<const std::byte* const> parts, std::byte* result,
             std::size_t count);

}  // namespace cuda_on_cpu::nccl
