#pragma once

#include <cstddef>
#include <cstdint>

#include "tera/tensor/dtype.h"

namespace tera {

// Elements of one dtype as another: floats are rounded to the nearest, all else must be what it is. Neither address
// need be a multiple of anything.
void convert(const std::byte* from, DType stored, std::byte* to, DType as, std::int64_t elements);

}  // namespace tera
