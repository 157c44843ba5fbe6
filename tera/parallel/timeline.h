#pragma once
// Helpers of the simulators of pipeline schedules: times that are not known, and ranks and chunks as vector indices.

#include <cstddef>
#include <limits>

namespace tera {

constexpr double unknown_time = -1;
constexpr double never = std::numeric_limits<double>::infinity();

constexpr std::size_t index(int i) { return static_cast<std::size_t>(i); }

}  // namespace tera
