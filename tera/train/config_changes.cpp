#include "tera/train/config_changes.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "tera/base/error.h"
#include "tera/config/catalog.h"
#include "tera/config/value.h"
#include "tera/setup/load.h"

namespace tera {
namespace {

bool matters(const Field& field) { return field.role == KeyRole::numerics || field.role == KeyRole::shapes; }

std::map<std::string, std::string> values_that_matter(const RunConfig& config) {
  std::map<std::string, std::string> values;
  for_each_value(config, [&](const std::string& key, const Field& field, const void* value) {
    if (matters(field)) values[key] = write_value(field, value);
  });
  return values;
}

struct Change {
  std::string key, stored, wanted;
  const Field* field;
};

// Changes that explain other shapes sort first. A size that one side leaves to be derived may turn out equal.
enum class Weight : std::uint8_t { shapes, perhaps_shapes, none };
Weight weigh(const Change& change) {
  const bool open = change.field->zero_means_derived && (change.stored == "0" || change.wanted == "0");
  if (change.field->role != KeyRole::shapes) return Weight::none;
  return open ? Weight::perhaps_shapes : Weight::shapes;
}

// Changed keys of the model that decide what is computed. Where one certainly explains other shapes, those that only
// may are left out.
std::vector<Change> model_changes(const RunConfig& stored, const RunConfig& wanted) {
  std::vector<Change> changes;
  for_each_value(wanted, [&](const std::string& key, const Field& field, const void* value) {
    if (!key.starts_with("model.") || !matters(field) || key == "model.arch") return;
    // Weights may go into a model with other MTP layers, which therefore explain no other shapes; they are named
    // behind.
    if (field.from_hf || key == "model.mtp_num_layers") changes.push_back({key, {}, write_value(field, value), &field});
  });
  for_each_value(stored, [&](const std::string& key, const Field& field, const void* value) {
    const auto change = std::ranges::find(changes, key, &Change::key);
    if (change != changes.end()) change->stored = write_value(field, value);
  });
  std::erase_if(changes, [](const Change& change) { return change.stored == change.wanted; });
  std::ranges::stable_sort(changes, {}, weigh);
  if (!changes.empty() && weigh(changes.front()) == Weight::shapes)
    std::erase_if(changes, [](const Change& change) { return weigh(change) == Weight::perhaps_shapes; });
  return changes;
}

}  // namespace

std::string changes_since(const RunConfig& stored, const RunConfig& config) {
  std::map<std::string, std::string> before = values_that_matter(stored);
  std::string changes;
  for (const auto& [key, value] : values_that_matter(config))
    if (before[key] != value)
      changes += fmt::format("{}{} {:.200} -> {:.200}", changes.empty() ? "" : ", ", key, before[key], value);
  return changes;
}

std::string model_difference(const std::string& stored_yaml, const RunConfig& config) {
  constexpr std::size_t shown = 5;
  RunConfig stored;
  try {
    stored = load_config_text(stored_yaml, "manifest.json", families_with(config.model.arch)).config;
  } catch (const UserError&) {
    return {};
  }
  const bool other_arch = stored.model.arch && config.model.arch && stored.model.arch != config.model.arch;
  const std::vector<Change> changes = model_changes(stored, config);
  if (!other_arch && (changes.empty() || weigh(changes.front()) == Weight::none)) return {};
  std::string text = "it is of another model than the config describes";
  if (other_arch)
    text =
        fmt::format("it is of a {}, and the config describes a {}", stored.model.arch->name, config.model.arch->name);
  for (std::size_t i = 0; i < std::min(shown, changes.size()); ++i)
    text += fmt::format("{}{} is {:.100} there and {:.100} in the config", i == 0 ? ": " : ", ", changes[i].key,
                        changes[i].stored, changes[i].wanted);
  if (changes.size() > shown) text += fmt::format(", and {} more keys differ", changes.size() - shown);
  return text;
}

}  // namespace tera
