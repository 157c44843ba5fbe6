#pragma once
// What becomes of the places where a pre-tokenizer's pattern matches.

#include <cstdint>

#include "tera/base/enum_names.h"

namespace tera {

enum class SplitBehavior : std::uint8_t { removed, isolated, merged_with_previous, merged_with_next, contiguous };

template <>
struct EnumNames<SplitBehavior> {
  static constexpr std::array values{
      std::pair{SplitBehavior::removed, std::string_view("Removed")},
      std::pair{SplitBehavior::isolated, std::string_view("Isolated")},
      std::pair{SplitBehavior::merged_with_previous, std::string_view("MergedWithPrevious")},
      std::pair{SplitBehavior::merged_with_next, std::string_view("MergedWithNext")},
      std::pair{SplitBehavior::contiguous, std::string_view("Contiguous")}};
};

}  // namespace tera
