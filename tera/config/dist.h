#pragma once
// Where the run computes.

#include <cstdint>
#include <span>

#include "tera/base/enum_names.h"

namespace tera {

struct Field;

enum class DeviceChoice : std::uint8_t { automatic, cpu, cuda };
enum class CpuIsa : std::uint8_t { automatic, baseline, avx2, avx512 };

struct DistConfig {
  DeviceChoice device = DeviceChoice::automatic;
  std::int64_t threads = 0;
  CpuIsa cpu_isa = CpuIsa::automatic;

  static std::span<const Field> fields();
  bool operator==(const DistConfig&) const = default;
};

template <>
struct EnumNames<DeviceChoice> {
  static constexpr std::array values{std::pair{DeviceChoice::automatic, std::string_view("auto")},
                                     std::pair{DeviceChoice::cpu, std::string_view("cpu")},
                                     std::pair{DeviceChoice::cuda, std::string_view("cuda")}};
};
template <>
struct EnumNames<CpuIsa> {
  static constexpr std::array values{
      std::pair{CpuIsa::automatic, std::string_view("auto")}, std::pair{CpuIsa::baseline, std::string_view("baseline")},
      std::pair{CpuIsa::avx2, std::string_view("avx2")}, std::pair{CpuIsa::avx512, std::string_view("avx512")}};
};

}  // namespace tera
