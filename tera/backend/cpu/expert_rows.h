#pragma once
#include <string_view>

#include "tera/tensor/tensor.h"

namespace tera::cpu {

// Row numbers (sources, places), each negative or below `rows`; throws where one is not.
const std::int32_t* checked_rows(const Tensor& numbers, std::int64_t rows, std::string_view op);

}  // namespace tera::cpu
