#pragma once
// Up to five dims. Shape letters used everywhere: T tokens, B sequences, S sequence length, H hidden, F ffn, N heads,
// G kv heads, D head size, V vocabulary.

#include <array>
#include <cstdint>
#include <string>

namespace tera {

struct Shape {
  static constexpr int max_rank = 5;
  std::array<std::int64_t, max_rank> dim{};
  int rank = 0;

  std::int64_t operator[](int i) const { return dim[static_cast<std::size_t>(i)]; }
  std::int64_t& operator[](int i) { return dim[static_cast<std::size_t>(i)]; }
  std::int64_t last() const { return dim[static_cast<std::size_t>(rank - 1)]; }
  bool operator==(const Shape&) const = default;
};

template <class... Dims>
constexpr Shape shape(Dims... dims) {
  static_assert(sizeof...(dims) >= 1 && sizeof...(dims) <= Shape::max_rank);
  return {{static_cast<std::int64_t>(dims)...}, static_cast<int>(sizeof...(dims))};
}

// Number of elements; throws if it does not fit 64 bits or a dim is negative. A shape without dims has none.
std::int64_t count(const Shape& shape);

// Strides, in elements, of a dense tensor of this shape.
Shape dense_stride(const Shape& shape);

std::string to_string(const Shape& shape);  // "[4,128]"

}  // namespace tera
