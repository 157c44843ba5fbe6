#pragma once
// Memory for one tensor with guard bytes on both sides and, when rows are strided, between them.

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "tera/tensor/tensor.h"

namespace tera::test {

class Guarded {
 public:
  // row_gap: elements left free after each row (dim 0).
  Guarded(const Shape& shape, DType dtype, std::int64_t row_gap = 0) {
    tensor_ = make_tensor(nullptr, shape, dtype);
    const std::int64_t row = shape[0] > 0 ? count(shape) / shape[0] : 0;
    if (row_gap > 0) tensor_.stride[0] = row + row_gap;
    const auto elements = static_cast<std::size_t>(shape[0] * (row + row_gap));
    bytes_.assign(elements * size_of(dtype) + 2 * guard + alignment, pattern);
    const auto address = reinterpret_cast<std::uintptr_t>(bytes_.data()) + guard;
    const std::size_t begin = guard + (alignment - address % alignment) % alignment;
    tensor_.data = bytes_.data() + begin;
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  Guarded(Guarded&&) = default;  // a moved vector keeps its memory, so tensor_ stays right

  const Tensor& tensor() const { return tensor_; }

  // The address of logical element i, counted densely.
  std::byte* at(std::int64_t i) const {
    const std::int64_t row = count(tensor_.shape) / tensor_.shape[0];
    const std::int64_t offset = i / row * tensor_.stride[0] + i % row;
    return static_cast<std::byte*>(tensor_.data) + offset * static_cast<std::int64_t>(size_of(tensor_.dtype));
  }

  // Stretches of elements that lie side by side: the rows or, where nothing is between them, all of them in one.
  std::size_t stretches() const {
    return count(tensor_.shape) == 0 ? 0 : static_cast<std::size_t>(is_dense() ? 1 : tensor_.shape[0]);
  }
  std::span<std::byte> stretch(std::size_t i) const {
    const std::size_t elements = static_cast<std::size_t>(count(tensor_.shape)) / stretches(),
                      size = size_of(tensor_.dtype);
    return {static_cast<std::byte*>(tensor_.data) + i * static_cast<std::size_t>(tensor_.stride[0]) * size,
            elements * size};
  }

  // True when no byte outside the elements changed.
  bool intact() const {
    const auto untouched = [](const std::byte* begin, const std::byte* end) {
      return std::all_of(begin, end, [](std::byte b) { return b == pattern; });
    };
    const std::byte* looked_at = bytes_.data();
    for (std::size_t i = 0; i < stretches(); ++i) {
      if (!untouched(looked_at, stretch(i).data())) return false;
      looked_at = stretch(i).data() + stretch(i).size();
    }
    return untouched(looked_at, bytes_.data() + bytes_.size());
  }

  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  bool is_dense() const { return tensor_.stride[0] * tensor_.shape[0] == count(tensor_.shape); }

  static constexpr std::size_t guard = 256, alignment = 64;
  static constexpr std::byte pattern{0x5a};
  std::vector<std::byte> bytes_;
  Tensor tensor_;
};

}  // namespace tera::test
