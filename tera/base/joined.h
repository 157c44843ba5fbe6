#pragma once
// Lists for messages.

#include <fmt/core.h>

#include <string>
#include <string_view>

namespace tera {

// "a, b, c", each item as {} prints it. fmt::join would do the same, but takes seconds to compile wherever it is used.
template <class Items>
std::string joined(const Items& items, std::string_view separator) {
  std::string text;
  bool first = true;
  for (const auto& item : items) {
    if (!first) text += separator;
    text += fmt::format("{}", item);
    first = false;
  }
  return text;
}

}  // namespace tera
