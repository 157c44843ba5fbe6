#pragma once
#include <cstdint>
#include <span>

#include "tera/base/enum_names.h"
#include "tera/tensor/tensor.h"

namespace tera {

enum class Reduce : std::uint8_t { sum, mean, max };

template <>
struct EnumNames<Reduce> {
  static constexpr std::array values{std::pair{Reduce::sum, std::string_view("sum")},
                                     std::pair{Reduce::mean, std::string_view("mean")},
                                     std::pair{Reduce::max, std::string_view("max")}};
};

// The local reduction of collectives: out = sources[0] + sources[1] + ..., elementwise and in this order; mean divides
// the sum by the number of sources, and max is NaN where any of them is. 16-bit floats are combined in fp32 and rounded
// once, at the end; integers wrap and have no mean. All tensors dense, of one shape and dtype (any but u8); out may be
// one of the sources.
struct CombineArgs {
  static constexpr std::size_t max_sources = 256;
  std::span<const Tensor> sources;
  Tensor out;
  Reduce how = Reduce::sum;
  void check() const;
};

// Whether combine takes the dtype: all but u8, and integers only where nothing is divided.
constexpr bool can_combine(DType dtype, Reduce how) {
  const bool integer = dtype == DType::i32 || dtype == DType::i64;
  return dtype != DType::u8 && !(integer && how == Reduce::mean);
}

}  // namespace tera
