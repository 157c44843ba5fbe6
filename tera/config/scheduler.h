#pragma once
// The learning rate over the run.

#include <cstdint>
#include <span>

#include "tera/base/enum_names.h"

namespace tera {

struct Field;

enum class LrDecayChoice : std::uint8_t { constant, linear, cosine, inverse_square_root, wsd };
enum class WsdDecayChoice : std::uint8_t { exponential, linear, cosine, minus_sqrt };

struct SchedulerConfig {
  LrDecayChoice lr_decay_style = LrDecayChoice::linear;
  std::int64_t lr_warmup_iters = 0;
  double lr_warmup_init = 0;
  std::int64_t lr_decay_iters = 0;
  std::int64_t lr_wsd_decay_iters = 0;
  WsdDecayChoice lr_wsd_decay_style = WsdDecayChoice::exponential;

  static std::span<const Field> fields();
  bool operator==(const SchedulerConfig&) const = default;
};

template <>
struct EnumNames<LrDecayChoice> {
  static constexpr std::array values{
      std::pair{LrDecayChoice::constant, std::string_view("constant")},
      std::pair{LrDecayChoice::linear, std::string_view("linear")},
      std::pair{LrDecayChoice::cosine, std::string_view("cosine")},
      std::pair{LrDecayChoice::inverse_square_root, std::string_view("inverse-square-root")},
      std::pair{LrDecayChoice::wsd, std::string_view("WSD")}};
};
template <>
struct EnumNames<WsdDecayChoice> {
  static constexpr std::array values{std::pair{WsdDecayChoice::exponential, std::string_view("exponential")},
                                     std::pair{WsdDecayChoice::linear, std::string_view("linear")},
                                     std::pair{WsdDecayChoice::cosine, std::string_view("cosine")},
                                     std::pair{WsdDecayChoice::minus_sqrt, std::string_view("minus_sqrt")}};
};

}  // namespace tera
