#pragma once
// Valid values near an invalid one, for messages.

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

namespace tera {

// "2 or 4": the valid values nearest to `value` on either side, in [1, limit]; empty when there is none.
template <class Valid>
std::string nearest_values(std::int64_t value, std::int64_t limit, const Valid& valid) {
  std::optional<std::int64_t> below, above;
  for (std::int64_t v = std::min(value, limit); v >= 1 && !below; --v)
    if (valid(v)) below = v;
  for (std::int64_t v = value + 1; v <= limit && !above; ++v)
    if (valid(v)) above = v;
  if (below && above) return fmt::format("{} or {}", *below, *above);
  if (below || above) return fmt::format("{}", below ? *below : *above);
  return "";
}

inline std::string nearest_divisors(std::int64_t number, std::int64_t divisor) {
  return nearest_values(divisor, number, [&](std::int64_t v) { return number % v == 0; });
}

// "8 or 12": the multiples of `unit` around `value`.
inline std::string nearest_multiples(std::int64_t unit, std::int64_t value) {
  const std::int64_t below = value / unit * unit;
  return below == 0 ? fmt::format("{}", unit) : fmt::format("{} or {}", below, below + unit);
}

}  // namespace tera
