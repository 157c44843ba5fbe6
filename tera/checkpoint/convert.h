#pragma once

#include <cstddef>
#include <cstdint>

#include "tera/tensor/dtype.h"

namespace tera {

// Converts elements of one dtype to another: floats are rounded to nearest, other dtypes must be equal. Addresses may
// be unaligned.
void convert(const std::byte* from, DType stored, std::byte* to, DType as, std::int64_t elements);

}  // namespace tera
