#pragma once
// What the players of schedules share: times that have not come, and ranks and chunks as indices of vectors.

#include <cstddef>
#include <limits>

namespace tera {

constexpr double unknown_time = -1;
constexpr double never = std::numeric_limits<double>::infinity();

constexpr std::size_t index(int i) { return static_cast<std::size_t>(i); }

}  // namespace tera
