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

// Access by name to a value of a closed list: a named enum, or a model family.
struct ChoiceAccess {
  std::vector<std::string_view> (*names)();
  std::string_view (*get)(const void* value);       // empty: unset
  bool (*set)(void* value, std::string_view name);  // false: it is no name of the list
};

struct ModelFamily;

// The range of a number: low <= value <= high; with an open end low < value, or value < high.
struct Limits {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool low_open = false;
  bool high_open = false;
};

// What a key decides, beyond its value.
enum class KeyRole : std::uint8_t {
  unsaid,    // sections; no key
  free,      // paths, speed, duration, logging: a run that goes on may have another value
  numerics,  // what is computed
  shapes     // what is computed, and which tensors a model has or their shapes
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
  KeyRole role = KeyRole::unsaid;
  bool from_hf = true;              // a key of the model: its Hugging Face folder decides it, not only its default
  bool zero_means_derived = false;  // 0: the value follows from other keys

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
  constexpr Field free() const { return with(KeyRole::free); }
  constexpr Field numerics() const { return with(KeyRole::numerics); }
  constexpr Field shapes() const { return with(KeyRole::shapes); }
  constexpr Field hf_default() const {
    Field field = *this;
    field.from_hf = false;
    return field;
  }
  constexpr Field derived_from_0() const {
    Field field = *this;
    field.zero_means_derived = true;
    return field;
  }

 private:
  constexpr Field with(KeyRole new_role) const {
    Field field = *this;
    field.role = new_role;
    return field;
  }
  constexpr Field with(Limits new_limits) const {
    Field field = *this;
    field.limits = new_limits;
    return field;
  }
};

namespace detail {

template <NamedEnum E>
std::vector<std::string_view> choice_names() {
  std::vector<std::string_view> names;
  for (const auto& [value, name] : EnumNames<E>::values) names.push_back(name);
  return names;
}

// Those of the registry; a family from outside is set by whoever knows it (tera/setup/load.h).
std::vector<std::string_view> family_names();
std::string_view family_name_of(const void* value);
bool set_family(void* value, std::string_view name);

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
                                       [](const void* p) { return name_of(*static_cast<const E*>(p)); },
                                       [](void* p, std::string_view name) {
                                         const auto value = parse_enum<E>(name);
                                         if (value) *static_cast<E*>(p) = *value;
                                         return value.has_value();
                                       }};
};
template <>
struct FieldType<const ModelFamily*> {
  static constexpr FieldKind kind = FieldKind::choice;
  static constexpr ChoiceAccess choice{family_names, family_name_of, set_family};
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

// "a, b or c".
std::string join_names(std::span<const std::string_view> names);

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
