#pragma once
// Small checks that the argument structs share. `op` and `name` make the message: "gemm: b is f32[3,4], expected ...".

#include <string_view>

#include "tera/tensor/tensor.h"

namespace tera::check {

void present(std::string_view op, std::string_view name, const Tensor& tensor);
void dtype(std::string_view op, std::string_view name, const Tensor& tensor, DType wanted);
void float_dtype(std::string_view op, std::string_view name, const Tensor& tensor);
void same_shape(std::string_view op, std::string_view name, const Tensor& tensor, const Shape& wanted);
void dense(std::string_view op, std::string_view name, const Tensor& tensor);
// All dims but the first are dense; rows may have any stride with which they do not overlap.
void dense_rows(std::string_view op, std::string_view name, const Tensor& tensor);
void that(bool holds, std::string_view op, std::string_view rule);

}  // namespace tera::check
