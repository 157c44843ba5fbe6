#pragma once
// The type weights and activations are stored in; sums are always fp32.

#include <cstdint>
#include <span>

#include "tera/base/enum_names.h"

namespace tera {

struct Field;

enum class Precision : std::uint8_t { fp32, bf16 };

struct MixedPrecisionConfig {
  Precision precision = Precision::fp32;

  static std::span<const Field> fields();
  bool operator==(const MixedPrecisionConfig&) const = default;
};

template <>
struct EnumNames<Precision> {
  static constexpr std::array values{std::pair{Precision::fp32, std::string_view("fp32")},
                                     std::pair{Precision::bf16, std::string_view("bf16")}};
};

}  // namespace tera
