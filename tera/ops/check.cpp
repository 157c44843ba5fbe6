#include "tera/ops/check.h"

#include "tera/base/error.h"

namespace tera::check {
namespace {

[[noreturn]] void wrong_tensor(std::string_view op, std::string_view name, const Tensor& tensor,
                               std::string_view expected) {
  fail("{}: {} is {}, expected {}", op, name, to_string(tensor), expected);
}

bool rows_are_dense(const Tensor& tensor) {
  if (tensor.shape.rank == 0) return false;
  std::int64_t step = 1;
  for (int i = tensor.shape.rank - 1; i >= 1; --i) {
    if (tensor.shape[i] != 1 && tensor.stride[i] != step) return false;
    step *= tensor.shape[i];
  }
  return tensor.shape[0] <= 1 || tensor.stride[0] >= step;
}

}  // namespace

void present(std::string_view op, std::string_view name, const Tensor& tensor) {
  if (!tensor) wrong_tensor(op, name, tensor, "a tensor");
}

void dtype(std::string_view op, std::string_view name, const Tensor& tensor, DType wanted) {
  present(op, name, tensor);
  if (tensor.dtype != wanted) wrong_tensor(op, name, tensor, name_of(wanted));
}

void float_dtype(std::string_view op, std::string_view name, const Tensor& tensor) {
  present(op, name, tensor);
  if (!is_float(tensor.dtype)) wrong_tensor(op, name, tensor, "f32, bf16 or f16");
}

void same_shape(std::string_view op, std::string_view name, const Tensor& tensor, const Shape& wanted) {
  present(op, name, tensor);
  if (tensor.shape != wanted) wrong_tensor(op, name, tensor, to_string(wanted));
}

void dense(std::string_view op, std::string_view name, const Tensor& tensor) {
  present(op, name, tensor);
  if (!tensor.dense()) wrong_tensor(op, name, tensor, "a dense tensor");
}

void dense_rows(std::string_view op, std::string_view name, const Tensor& tensor) {
  present(op, name, tensor);
  if (!rows_are_dense(tensor)) wrong_tensor(op, name, tensor, "dense rows");
}

void that(bool holds, std::string_view op, std::string_view rule) {
  if (!holds) fail("{}: {}", op, rule);
}

}  // namespace tera::check
