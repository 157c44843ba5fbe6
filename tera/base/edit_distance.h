#pragma once
#include <cstddef>
#include <string_view>

namespace tera {

// The fewest insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`, for "did you mean".
// Time is proportional to the product of the lengths.
std::size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace tera
