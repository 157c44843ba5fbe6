#pragma once
// An option whose value is the name of an enumerator.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tera/base/enum_names.h"
#include "tera/base/error.h"
#include "tera/base/joined.h"

namespace tera {

template <class E>
E parse_choice(const std::string& option, const std::string& text) {
  const std::optional<E> value = parse_enum<E>(text);
  std::vector<std::string_view> names;
  for (const auto& [known, name] : EnumNames<E>::values) names.push_back(name);
  require_user(value.has_value(), "{} {}: there are {}", option, text, joined(names, ", "));
  return *value;
}

}  // namespace tera
