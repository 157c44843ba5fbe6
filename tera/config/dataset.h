#pragma once
// What the run reads.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tera/base/enum_names.h"

namespace tera {

struct Field;

enum class DatasetKind : std::uint8_t { mock, text };

struct DatasetConfig {
  DatasetKind kind = DatasetKind::mock;
  std::vector<std::string> data_path;
  std::string split = "969,30,1";

  static std::span<const Field> fields();
  bool operator==(const DatasetConfig&) const = default;
};

template <>
struct EnumNames<DatasetKind> {
  static constexpr std::array values{std::pair{DatasetKind::mock, std::string_view("mock")},
                                     std::pair{DatasetKind::text, std::string_view("text")}};
};

}  // namespace tera
