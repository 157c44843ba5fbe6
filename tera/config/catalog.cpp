#include "tera/config/catalog.h"

#include <fmt/core.h>

#include <algorithm>

#include "tera/base/edit_distance.h"
#include "tera/config/foreign_names.h"

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

// Names of other programs are also recognised inside a section of ours: "model.moe.top_k".
const ForeignName* find_foreign(std::string_view key) {
  const std::string_view name = last_part(key);
  if (key.starts_with("model.moe."))
    if (const ForeignName* found = find_foreign_name(fmt::format("moe_{}", name))) return found;
  return find_foreign_name(name);
}

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

std::vector<std::string> keys_named(std::string_view name) {
  std::vector<std::string> keys = all_keys();
  std::erase_if(keys, [&](const std::string& key) { return last_part(key) != name; });
  return keys;
}

std::string nearest_key(std::string_view key) {
  constexpr std::size_t max_length = 200;  // keys are short; the distance costs the product of the lengths
  constexpr std::string_view experts = "model.moe.", prefix = "moe_";  // Megatron-LM has no sections
  if (key.size() > max_length) return {};
  const std::string_view name = last_part(key);
  if (const ForeignName* foreign = find_foreign(key)) return std::string(foreign->key);
  if (name.starts_with(prefix))
    if (std::string meant = fmt::format("{}{}", experts, name.substr(prefix.size())); find_field(meant) != nullptr)
      return meant;
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

std::string_view note_on_key(std::string_view key) {
  const ForeignName* foreign = find_foreign(key);
  return foreign == nullptr ? std::string_view() : foreign->note;
}

std::string_view value_for_key(std::string_view key) {
  const ForeignName* foreign = find_foreign(key);
  return foreign == nullptr ? std::string_view() : foreign->value;
}

std::string advice_on_key(std::string_view key) {
  const std::string nearest = nearest_key(key);
  const std::string_view note = note_on_key(key);
  if (nearest.empty()) return std::string(note);
  return fmt::format("did you mean {}?{}{}", nearest, note.empty() ? "" : " ", note);
}

}  // namespace tera
