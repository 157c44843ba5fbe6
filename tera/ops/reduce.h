#pragma once
// How collectives and Ops' combine reduce.

#include <cstdint>

#include "tera/base/enum_names.h"
#include "tera/tensor/dtype.h"

namespace tera {

enum class Reduce : std::uint8_t { sum, mean, max };

template <>
struct EnumNames<Reduce> {
  static constexpr std::array values{std::pair{Reduce::sum, std::string_view("sum")},
                                     std::pair{Reduce::mean, std::string_view("mean")},
                                     std::pair{Reduce::max, std::string_view("max")}};
};

// Whether combine takes the dtype: all but u8, and integers only where nothing is divided.
constexpr bool can_combine(DType dtype, Reduce how) {
  const bool integer = dtype == DType::i32 || dtype == DType::i64;
  return dtype != DType::u8 && !(integer && how == Reduce::mean);
}

}  // namespace tera
