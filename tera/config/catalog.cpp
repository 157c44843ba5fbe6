#include "tera/config/catalog.h"

#include <algorithm>

#include "tera/base/edit_distance.h"

namespace tera {
namespace {

using Visit = FunctionRef<void(const std::string& key, const Field&, const void*)>;

void visit_fields(std::span<const Field> fields, const void* section, const std::string& prefix, bool sections,
                  Visit visit) {
  for (const Field& field : fields) {
    const std::string key = prefix + std::string(field.name);
    const void* value = field.address_in(section);
    if (field.kind != FieldKind::section || sections) visit(key, field, value);
    if (field.kind == FieldKind::section) visit_fields(field.section(), value, key + ".", sections, visit);
  }
}

std::string_view last_part(std::string_view key) { return key.substr(key.rfind('.') + 1); }

}  // namespace

void for_each_value(const RunConfig& config, Visit visit) {
  visit_fields(RunConfig::fields(), &config, "", false, visit);
}

const Field* find_field(std::string_view key) {
  std::span<const Field> fields = RunConfig::fields();
  while (true) {
    const std::size_t dot = key.find('.');
    const auto found =
        std::find_if(fields.begin(), fields.end(), [&](const Field& f) { return f.name == key.substr(0, dot); });
    if (found == fields.end()) return nullptr;
    if (dot == std::string_view::npos) return &*found;
    if (found->kind != FieldKind::section) return nullptr;
    fields = found->section();
    key = key.substr(dot + 1);
  }
}

std::vector<std::string> all_keys() {
  std::vector<std::string> keys;
  const RunConfig config;
  visit_fields(RunConfig::fields(), &config, "", true,
               [&](const std::string& key, const Field&, const void*) { keys.push_back(key); });
  return keys;
}

std::string nearest_key(std::string_view key) {
  constexpr std::size_t longest = 200;  // keys are short; the distance costs the product of the lengths
  if (key.size() > longest) return {};
  const std::string_view name = last_part(key);
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, name.size() / 3) + 1;
  for (const std::string& known : all_keys()) {
    const std::size_t elsewhere = edit_distance(name, last_part(known)) + 1;
    const std::size_t distance = std::min(edit_distance(key, known), elsewhere);
    if (distance < best_distance) {
      best = known;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace tera
