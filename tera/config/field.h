#pragma once
// One entry of a section's table: the YAML key, the struct member that holds its value, the help text and the limits.
// Reading, overriding, printing, help texts and docs/config.md all walk these tables. Types are erased here, so the
// templates are instantiated only in the files that hold tables (model.cpp, moe.cpp, sections.cpp).

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tera/base/enum_names.h"
#include "tera/config/sections/blend_part.h"

namespace tera {

enum class FieldKind : std::uint8_t {
  boolean,
  integer,
  number,
  text,
  text_list,
  integer_list,
  number_list,
  blend,
  choice,
  section
};

// Access to a named enum, or an optional one, as an index into its list of names; -1 when unset.
struct ChoiceAccess {
  std::span<const std::string_view> names;
  int (*get)(const void* value);
  void (*set)(void* value, int index);
};

// The range of a number: low <= value <= high; with an open end low < value, or value < high.
struct Limits {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool low_open = false;
  bool high_open = false;
};

struct Field {
  std::string_view name;
  std::string_view help;
  FieldKind kind = FieldKind::text;
  void* (*address)(void* section) = nullptr;
  const ChoiceAccess* choice = nullptr;           // only of kind choice
  std::span<const Field> (*section)() = nullptr;  // only of kind section
  Limits limits{};                                // for kinds integer, number and number_list
  bool required = false;                          // the default value means that the key was not given

  const void* address_in(const void* in) const { return address(const_cast<void*>(in)); }

  constexpr Field at_least(double low) const { return with({low, limits.high, false, limits.high_open}); }
  constexpr Field above(double low) const { return with({low, limits.high, true, limits.high_open}); }
  constexpr Field at_most(double high) const { return with({limits.low, high, limits.low_open, false}); }
  constexpr Field below(double high) const { return with({limits.low, high, limits.low_open, true}); }
  constexpr Field within(double low, double high) const { return with({low, high, false, false}); }
  constexpr Field must_be_given() const {
    Field field = *this;
    field.required = true;
    return field;
  }

 private:
  constexpr Field with(Limits new_limits) const {
    Field field = *this;
    field.limits = new_limits;
    return field;
  }
};

namespace detail {

template <NamedEnum E>
constexpr auto names_only() {
  std::array<std::string_view, EnumNames<E>::values.size()> names;
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = EnumNames<E>::values[i].second;
  return names;
}

template <NamedEnum E>
int index_of(E value) {
  for (std::size_t i = 0; i < EnumNames<E>::values.size(); ++i)
    if (EnumNames<E>::values[i].first == value) return static_cast<int>(i);
  return -1;
}

template <NamedEnum E>
E value_at(int index) {
  return EnumNames<E>::values[static_cast<std::size_t>(index)].first;
}

template <NamedEnum E>
inline constexpr auto choice_names = names_only<E>();

template <class T>
struct FieldType;

template <>
struct FieldType<bool> {
  static constexpr FieldKind kind = FieldKind::boolean;
};
template <>
struct FieldType<std::int64_t> {
  static constexpr FieldKind kind = FieldKind::integer;
};
template <>
struct FieldType<double> {
  static constexpr FieldKind kind = FieldKind::number;
};
template <>
struct FieldType<std::string> {
  static constexpr FieldKind kind = FieldKind::text;
};
template <>
struct FieldType<std::vector<std::string>> {
  static constexpr FieldKind kind = FieldKind::text_list;
};
template <>
struct FieldType<std::vector<std::int64_t>> {
  static constexpr FieldKind kind = FieldKind::integer_list;
};
template <>
struct FieldType<std::vector<double>> {
  static constexpr FieldKind kind = FieldKind::number_list;
};
template <>
struct FieldType<std::vector<BlendPart>> {
  static constexpr FieldKind kind = FieldKind::blend;
};
template <NamedEnum E>
struct FieldType<E> {
  static constexpr FieldKind kind = FieldKind::choice;
  static constexpr ChoiceAccess choice{choice_names<E>,
                                       [](const void* p) { return index_of(*static_cast<const E*>(p)); },
                                       [](void* p, int index) { *static_cast<E*>(p) = value_at<E>(index); }};
};
template <NamedEnum E>
struct FieldType<std::optional<E>> {
  static constexpr FieldKind kind = FieldKind::choice;
  static constexpr ChoiceAccess choice{
      choice_names<E>,
      [](const void* p) {
        const auto& value = *static_cast<const std::optional<E>*>(p);
        return value ? index_of(*value) : -1;
      },
      [](void* p, int index) { *static_cast<std::optional<E>*>(p) = value_at<E>(index); }};
};
template <class T>
requires requires { T::fields(); }
struct FieldType<T> {
  static constexpr FieldKind kind = FieldKind::section;
};

template <class Section, class Value>
Value member_type(Value Section::*);
template <class Section, class Value>
Section section_type(Value Section::*);

}  // namespace detail

// field<&ModelConfig::num_layers>("num_layers", "..."): the member is a template argument, so the accessor is a plain
// function and the whole table is constant data.
template <auto member>
constexpr Field field(std::string_view name, std::string_view help) {
  using Value = decltype(detail::member_type(member));
  using Section = decltype(detail::section_type(member));
  using Type = detail::FieldType<Value>;
  Field field{.name = name, .help = help, .kind = Type::kind};
  field.address = [](void* section) -> void* { return &(static_cast<Section*>(section)->*member); };
  if constexpr (Type::kind == FieldKind::choice) field.choice = &Type::choice;
  if constexpr (Type::kind == FieldKind::section) field.section = &Value::fields;
  return field;
}

}  // namespace tera
