#include "tera/tensor/tensor.h"

#include <fmt/core.h>

#include <span>

#include "tera/base/error.h"
#include "tera/base/joined.h"

namespace tera {

std::int64_t count(const Shape& shape) {
  if (shape.rank == 0) return 0;
  std::int64_t n = 1;
  for (int i = 0; i < shape.rank; ++i)
    if (shape[i] < 0 || __builtin_mul_overflow(n, shape[i], &n))
      fail("shape {} has too many elements or a negative dim", to_string(shape));
  return n;
}

Shape dense_stride(const Shape& shape) {
  Shape stride;
  stride.rank = shape.rank;
  std::int64_t step = 1;
  for (int i = shape.rank - 1; i >= 0; --i) {
    stride[i] = step;
    step *= shape[i];
  }
  return stride;
}

std::string to_string(const Shape& shape) {
  return fmt::format("[{}]", joined(std::span(shape.dim).first(static_cast<std::size_t>(shape.rank)), ","));
}

std::string to_string(const Tensor& tensor) {
  return tensor
             ? fmt::format("{}{}{}", name_of(tensor.dtype), to_string(tensor.shape), tensor.dense() ? "" : " (strided)")
             : std::string("none");
}

bool Tensor::dense() const {
  std::int64_t step = 1;
  for (int i = shape.rank - 1; i >= 0; --i) {
    if (shape[i] != 1 && stride[i] != step) return false;
    step *= shape[i];
  }
  return true;
}

std::size_t Tensor::bytes() const { return static_cast<std::size_t>(count(shape)) * size_of(dtype); }

void Tensor::check_type(DType wanted) const {
  if (dtype != wanted) fail("a tensor of {} was read as {}", name_of(dtype), name_of(wanted));
}

Tensor Tensor::rows(std::int64_t begin, std::int64_t end) const { return slice(0, begin, end); }

Tensor Tensor::slice(int d, std::int64_t begin, std::int64_t end) const {
  if (d < 0 || d >= shape.rank || begin < 0 || begin > end || end > shape[d])
    fail("slice {}:{} of dim {} is outside {}", begin, end, d, to_string(*this));
  Tensor part = *this;
  part.shape[d] = end - begin;
  part.data = static_cast<std::byte*>(data) + begin * stride[d] * static_cast<std::int64_t>(size_of(dtype));
  return part;
}

Tensor Tensor::view(const Shape& as) const {
  if (!dense() || count(as) != count(shape)) fail("{} cannot be viewed as {}", to_string(*this), to_string(as));
  return make_tensor(data, as, dtype);
}

Tensor Tensor::split_last(std::int64_t outer, std::int64_t inner) const {
  if (shape.rank < 1 || shape.rank == Shape::max_rank || shape.last() != outer * inner || stride.last() != 1)
    fail("the last dim of {} cannot be split into {} x {}", to_string(*this), outer, inner);
  Tensor out = *this;
  out.shape.rank = out.stride.rank = shape.rank + 1;
  out.shape[shape.rank - 1] = outer;
  out.shape[shape.rank] = inner;
  out.stride[shape.rank - 1] = inner;
  out.stride[shape.rank] = 1;
  return out;
}

Tensor make_tensor(void* data, const Shape& shape, DType dtype) { return {data, shape, dense_stride(shape), dtype}; }

}  // namespace tera
