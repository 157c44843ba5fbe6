#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tera {

// The name with the smallest edit distance, or empty when none is near enough to be meant.
std::string nearest_name(std::string_view word, std::span<const std::string> names);

}  // namespace tera
