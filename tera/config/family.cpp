#include "tera/config/family.h"

#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tera/base/error.h"
#include "tera/config/field.h"
#include "tera/config/setup.h"

namespace tera {
namespace {

std::string list_those(Families families, bool (*wanted)(const ModelFamily&)) {
  std::vector<std::string_view> names;
  for (const ModelFamily* family : families)
    if (wanted(*family)) names.push_back(family->name);
  return join_names(names);
}

}  // namespace

const ModelFamily* find_family(std::string_view name, Families families) {
  const auto found = std::ranges::find(families, name, [](const ModelFamily* family) { return family->name; });
  return found == families.end() ? nullptr : *found;
}

const ModelFamily* find_hf_family(std::string_view hf_type, Families families) {
  const auto found = std::ranges::find(families, hf_type, [](const ModelFamily* family) { return family->hf_type; });
  return found == families.end() ? nullptr : *found;
}

std::string list_hf_types(Families families) {
  std::vector<std::string_view> types;
  for (const ModelFamily* family : families) types.push_back(family->hf_type);
  std::ranges::sort(types);
  std::string list;
  for (std::size_t i = 0; i < types.size(); ++i)
    list += fmt::format("{}{}", i == 0 ? "" : i + 1 == types.size() ? " and " : ", ", types[i]);
  return list;
}

std::string list_families(Families families) {
  return list_those(families, [](const ModelFamily&) { return true; });
}

std::string list_families_with_experts(Families families) {
  return list_those(families, [](const ModelFamily& family) { return family.has_experts; });
}

const ModelFamily& family_named(std::string_view name) {
  const ModelFamily* family = find_family(name, built_in_families());
  if (!family) fail("there is no family {}", name);
  return *family;
}

const ModelFamily& family_of(const ModelShape& model) {
  require(model.family != nullptr, "a model of no family");
  return *model.family;
}

std::vector<const ModelFamily*> families_with(const ModelFamily* family) {
  const Families built_in = built_in_families();
  std::vector<const ModelFamily*> families(built_in.begin(), built_in.end());
  if (family && !find_family(family->name, built_in)) families.push_back(family);
  return families;
}

namespace detail {

std::vector<std::string_view> family_names() {
  std::vector<std::string_view> names;
  for (const ModelFamily* family : built_in_families()) names.push_back(family->name);
  return names;
}

std::string_view family_name_of(const void* value) {
  const auto* family = *static_cast<const ModelFamily* const*>(value);
  return family ? family->name : std::string_view();
}

bool set_family(void* value, std::string_view name) {
  const ModelFamily* family = find_family(name, built_in_families());
  if (family) *static_cast<const ModelFamily**>(value) = family;
  return family != nullptr;
}

}  // namespace detail
}  // namespace tera
