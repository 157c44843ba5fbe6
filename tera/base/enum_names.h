#pragma once
// Names of an enum's values, in one place per enum: specialise EnumNames<E> with an array of {value, name}.
// Config parsing, help texts, logs and error messages use these names.

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace tera {

template <class E>
struct EnumNames;  // struct with: static constexpr std::array values{std::pair{E::a, std::string_view("a")}, ...};

template <class E>
concept NamedEnum = requires {
  EnumNames<E>::values;
};

template <NamedEnum E>
constexpr std::string_view name_of(E value) {
  for (const auto& [v, name] : EnumNames<E>::values)
    if (v == value) return name;
  return "?";
}

template <NamedEnum E>
constexpr std::optional<E> parse_enum(std::string_view text) {
  for (const auto& [v, name] : EnumNames<E>::values)
    if (name == text) return v;
  return std::nullopt;
}

// "a, b or c", for messages.
template <NamedEnum E>
std::string list_names() {
  std::string out;
  constexpr auto& values = EnumNames<E>::values;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i > 0) out += i + 1 == values.size() ? " or " : ", ";
    out += values[i].second;
  }
  return out;
}

}  // namespace tera
