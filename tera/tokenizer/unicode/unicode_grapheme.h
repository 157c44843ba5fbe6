#pragma once

#include <cstddef>
#include <string_view>

namespace tera {

// Bytes of the first extended grapheme cluster (Unicode 17) of text that is not empty: what a reader sees as one
// character.
std::size_t front_grapheme(std::string_view text);

}  // namespace tera
