#pragma once
// The splits of a run's data: train, valid and test.

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

#include "tera/base/enum_names.h"

namespace tera {

enum class DataSplit : std::uint8_t { train, valid, test };

template <>
struct EnumNames<DataSplit> {
  static constexpr std::array values{std::pair{DataSplit::train, std::string_view("train")},
                                     std::pair{DataSplit::valid, std::string_view("valid")},
                                     std::pair{DataSplit::test, std::string_view("test")}};
};

}  // namespace tera
