#pragma once
// A tensor is a view: a pointer, shape, strides and dtype. It never owns and never allocates; memory belongs to arenas
// (arena.h), and the code that took a tensor from an arena defines its lifetime.

#include <cstddef>
#include <cstdint>
#include <string>

#include "tera/tensor/dtype.h"
#include "tera/tensor/shape.h"

namespace tera {

struct Tensor {
  void* data = nullptr;
  Shape shape;
  Shape stride;  // in elements; dense unless made by slice()
  DType dtype = DType::f32;

  explicit operator bool() const { return data != nullptr; }
  std::int64_t dim(int i) const { return shape[i]; }
  bool dense() const;
  std::size_t bytes() const;  // size of the elements, without gaps between strided rows

  // A typed pointer to the elements; throws unless T matches dtype.
  template <class T>
  T* as() const {
    check_type(dtype_of<T>());
    return static_cast<T*>(data);
  }

  Tensor rows(std::int64_t begin, std::int64_t end) const;          // part of dim 0
  Tensor slice(int d, std::int64_t begin, std::int64_t end) const;  // part of any dim; not dense unless d is 0
  Tensor view(const Shape& as) const;                               // same elements, another shape; dense only
  Tensor split_last(std::int64_t outer, std::int64_t inner) const;  // [.., outer*inner] as [.., outer, inner]

 private:
  void check_type(DType wanted) const;
};

Tensor make_tensor(void* data, const Shape& shape, DType dtype);
std::string to_string(const Tensor& tensor);  // "f32[4,128]"

}  // namespace tera
