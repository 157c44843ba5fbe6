#pragma once
// Inputs of the ranks in a test: numbers that each rank can compute for all, and how they get into a tensor and out of
// it.

#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "tera/base/rng.h"
#include "tera/ops/combine.h"
#include "tera/tensor/arena.h"
#include "tests/parallel/comm_body.h"
#include "tests/support/fill.h"

namespace tera::test {

inline constexpr DType all_dtypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64,
                                       DType::i32, DType::i64,  DType::u8};

// visit(T{}) with the storage type.
template <class Visit>
auto with_storage(DType dtype, const Visit& visit) {
  switch (dtype) {
    case DType::f32: return visit(float{});
    case DType::bf16: return visit(BFloat16{});
    case DType::f16: return visit(Float16{});
    case DType::f64: return visit(double{});
    case DType::i32: return visit(std::int32_t{});
    case DType::i64: return visit(std::int64_t{});
    case DType::u8: break;
  }
  return visit(std::uint8_t{});
}

inline void to_storage(double value, float& to) { to = static_cast<float>(value); }
inline void to_storage(double value, BFloat16& to) { to = to_bf16(static_cast<float>(value)); }
inline void to_storage(double value, Float16& to) { to = to_f16(static_cast<float>(value)); }
template <class T>
void to_storage(double value, T& to) {
  to = static_cast<T>(value);
}
inline double from_storage(BFloat16 value) { return static_cast<double>(to_float(value)); }
inline double from_storage(Float16 value) { return static_cast<double>(to_float(value)); }
template <class T>
double from_storage(T value) {
  return static_cast<double>(value);
}

inline double rounded(DType dtype, double value) {
  return with_storage(dtype, [&](auto stored) {
    to_storage(value, stored);
    return from_storage(stored);
  });
}

// The n numbers that are a rank's input, as its dtype keeps them.
inline Values input_of_rank(int rank, std::int64_t n, DType dtype, std::uint64_t seed) {
  const bool is_integer = dtype == DType::i32 || dtype == DType::i64 || dtype == DType::u8;
  const std::uint64_t key = seed * 1000 + static_cast<std::uint64_t>(rank);
  Values values = is_integer ? integer_values(shape(n), key, 200) : normal_values(shape(n), key);
  for (double& value : values) value = rounded(dtype, value);
  return values;
}

// sum, mean or max of one element over the ranks, in their order, in the type that the definition asks for.
inline double reduced(const std::vector<double>& values, DType dtype, Reduce how) {
  const auto in = [&](auto total) {
    using Inside = decltype(total);
    total = static_cast<Inside>(values[0]);
    for (std::size_t r = 1; r < values.size(); ++r) {
      const auto next = static_cast<Inside>(values[r]);
      total = how == Reduce::max ? std::max(total, next) : static_cast<Inside>(total + next);
    }
    if (how == Reduce::mean) total = static_cast<Inside>(total / static_cast<Inside>(values.size()));
    return static_cast<double>(total);
  };
  return rounded(dtype, is_float(dtype) ? in(float{}) : dtype == DType::f64 ? in(double{}) : in(std::int64_t{}));
}

// Memory of one rank for one case.
class CommTensors {
 public:
  explicit CommTensors(const CommSubject& subject, std::size_t bytes = std::size_t{8} << 20)
      : ops_(subject.ops), arena_(subject.device.allocate(bytes), "comm test", subject.device.is_host()) {}

  Tensor make(const Shape& shape, DType dtype, const Values& values) {
    const Tensor tensor = arena_.take(shape, dtype, "test");
    write(tensor, values);
    return tensor;
  }
  Tensor garbage(const Shape& shape, DType dtype) {
    return make(shape, dtype, Values(static_cast<std::size_t>(count(shape)), 77));
  }
  void write(const Tensor& tensor, const Values& values) {
    const std::size_t size = size_of(tensor.dtype);
    std::vector<std::byte> bytes(values.size() * size);
    for (std::size_t i = 0; i < values.size(); ++i)
      with_storage(tensor.dtype, [&](auto stored) {
        to_storage(values[i], stored);
        std::memcpy(bytes.data() + i * size, &stored, size);
      });
    ops_.from_host(bytes, tensor);
  }
  Values read(const Tensor& tensor) {
    const std::size_t size = size_of(tensor.dtype);
    std::vector<std::byte> bytes(tensor.bytes());
    ops_.to_host(tensor, bytes);
    Values values(bytes.size() / size);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = with_storage(tensor.dtype, [&](auto stored) {
        std::memcpy(&stored, bytes.data() + i * size, size);
        return from_storage(stored);
      });
    return values;
  }
  void clear() { arena_.rewind(0); }

 private:
  Ops& ops_;
  Arena arena_;
};

}  // namespace tera::test
