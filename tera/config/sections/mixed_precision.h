#pragma once
// The dtype of weights and activations, and the loss scale of fp16; sums are always fp32.

#include <cstdint>
#include <span>

#include "tera/base/enum_names.h"

namespace tera {

struct Field;

enum class Precision : std::uint8_t { automatic, fp32, bf16, fp16 };

struct MixedPrecisionConfig {
  Precision precision = Precision::automatic;
  bool tf32 = false;
  double loss_scale = 0;
  double initial_loss_scale = 0x1p32, min_loss_scale = 1;
  std::int64_t loss_scale_window = 1000, hysteresis = 2;

  static std::span<const Field> fields();
  bool operator==(const MixedPrecisionConfig&) const = default;
};

template <>
struct EnumNames<Precision> {
  static constexpr std::array values{
      std::pair{Precision::automatic, std::string_view("auto")}, std::pair{Precision::fp32, std::string_view("fp32")},
      std::pair{Precision::bf16, std::string_view("bf16")}, std::pair{Precision::fp16, std::string_view("fp16")}};
};

}  // namespace tera
