#include "tera/setup/resolve_data.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>
#include <system_error>
#include <vector>

namespace tera {
namespace {

std::optional<double> number_in(std::string_view text) {
  double value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || stop != text.data() + text.size()) return {};
  return value;
}

bool is_weight(double value) { return std::isfinite(value) && value > 0; }

// A prefix; a list of prefixes; or weight, prefix, weight, prefix, ... A number is a weight.
BlendShape resolve_paths(std::string_view key, const std::vector<std::string>& list, Report& report) {
  BlendShape blend;
  bool pairs = list.size() % 2 == 0, any = false;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const bool number = number_in(list[i]).has_value();
    pairs = pairs && number == (i % 2 == 0);
    any = any || number;
  }
  if (any && !pairs) {
    report.broken(key,
                  "weights and prefixes come in pairs, the weight first: [0.3, a, 0.7, b]; or there are prefixes only "
                  "(one that is a number: ./7)");
    return {};
  }
  pairs = pairs && any;
  for (std::size_t i = 0; i < list.size(); i += pairs ? 2 : 1) {
    if (pairs) blend.weights.push_back(*number_in(list[i]));
    blend.prefixes.push_back(list[pairs ? i + 1 : i]);
  }
  return blend;
}

// Reports weights in the paths of a kind of data that is not blended.
void check_no_weights(std::string_view key, const std::vector<std::string>& paths, DatasetKind kind, Report& report) {
  const auto number = std::ranges::find_if(paths, [](const std::string& path) { return number_in(path).has_value(); });
  if (number != paths.end())
    report.broken(key, "dataset.kind={} has no weights, and {} is a number (a file of that name: ./{})", name_of(kind),
                  *number, *number);
}

void check_blend(std::string_view key, const BlendShape& blend, Report& report) {
  if (std::ranges::any_of(blend.prefixes, [](const std::string& prefix) { return prefix.empty(); }))
    report.broken(key, "an empty path");
  double sum = 0;
  for (const double weight : blend.weights) sum += weight;
  if (!std::ranges::all_of(blend.weights, is_weight) || !std::isfinite(sum))
    report.broken(key, "weights must be above 0 and finite");
}

struct PathKey {
  std::string_view key;
  const std::vector<std::string>& paths;
};

std::array<PathKey, 3> keys_by_split(const DatasetConfig& dataset) {
  return {PathKey{"dataset.train_data_path", dataset.train_data_path},
          PathKey{"dataset.valid_data_path", dataset.valid_data_path},
          PathKey{"dataset.test_data_path", dataset.test_data_path}};
}

BlendShape common_blend(const DatasetConfig& dataset, Report& report) {
  if (dataset.blend.empty()) {
    BlendShape blend = resolve_paths("dataset.data_path", dataset.data_path, report);
    check_blend("dataset.data_path", blend, report);
    return blend;
  }
  if (!dataset.data_path.empty())
    report.broken("dataset.blend", "give either this or dataset.data_path, which says the same in another form");
  BlendShape blend;
  for (const BlendPart& part : dataset.blend) {
    blend.prefixes.push_back(part.prefix);
    blend.weights.push_back(part.weight);
  }
  check_blend("dataset.blend", blend, report);
  return blend;
}

// Keys of some kinds of data must not be given for others, where they would have no effect.
void check_unused(const DatasetConfig& dataset, Report& report) {
  const auto needs = [&](std::string_view key, bool given, bool has, std::string_view kinds) {
    if (given && !has)
      report.broken(key, "only dataset.kind={} has it; dataset.kind is {}", kinds, name_of(dataset.kind));
  };
  const bool indexed = dataset.kind == DatasetKind::indexed, sft = dataset.kind == DatasetKind::sft;
  const auto needs_indexed = [&](std::string_view key, bool given) { needs(key, given, indexed, "indexed"); };
  const auto needs_either = [&](std::string_view key, bool given) {
    needs(key, given, indexed || sft, "indexed or sft");
  };
  const DatasetConfig defaults;
  needs_indexed("dataset.blend", !dataset.blend.empty());
  for (const auto& [key, paths] : keys_by_split(dataset)) needs_either(key, !paths.empty());
  needs_indexed("dataset.data_cache_path", !dataset.data_cache_path.empty());
  needs_either("dataset.full_validation", dataset.full_validation);
  needs_either("dataset.multiple_validation_sets", dataset.multiple_validation_sets);
  needs_indexed("dataset.add_extra_token_to_sequence", !dataset.add_extra_token_to_sequence);
  needs_indexed("dataset.drop_last_partial_validation_sequence", !dataset.drop_last_partial_validation_sequence);
  needs_indexed("dataset.mid_level_dataset_surplus",
                dataset.mid_level_dataset_surplus != defaults.mid_level_dataset_surplus);
  needs("dataset.chat_format.system", dataset.chat_format.system != defaults.chat_format.system, sft, "sft");
  needs("dataset.chat_format.user", dataset.chat_format.user != defaults.chat_format.user, sft, "sft");
  needs("dataset.chat_format.assistant", dataset.chat_format.assistant != defaults.chat_format.assistant, sft, "sft");
}

void check_chat(const DatasetConfig& dataset, Report& report) {
  const auto check = [&](std::string_view key, const std::string& format) {
    const std::size_t position = format.find("{content}");
    if (position == std::string::npos || format.find("{content}", position + 1) != std::string::npos)
      report.broken(key, "must have {{content}} in it, once");
  };
  check("dataset.chat_format.system", dataset.chat_format.system);
  check("dataset.chat_format.user", dataset.chat_format.user);
  check("dataset.chat_format.assistant", dataset.chat_format.assistant);
  for (const auto& [key, given] : {std::pair{"dataset.reset_position_ids", dataset.reset_position_ids},
                                   std::pair{"dataset.reset_attention_mask", dataset.reset_attention_mask}})
    if (given) report.broken(key, "dataset.kind=sft keeps conversations apart by itself; leave it out");
}

// The paths of each split.
IndexedShape resolve_splits(const DatasetConfig& dataset, Report& report) {
  IndexedShape shape;
  const auto keys = keys_by_split(dataset);
  const bool weights = dataset.kind == DatasetKind::indexed;
  const auto paths_of = [&](std::string_view key, const std::vector<std::string>& paths) {
    if (weights) return resolve_paths(key, paths, report);
    check_no_weights(key, paths, dataset.kind, report);
    return BlendShape{paths, {}};
  };
  shape.data_per_split = std::ranges::any_of(keys, [](const PathKey& split) { return !split.paths.empty(); });
  if (shape.data_per_split) {
    if (!dataset.data_path.empty() || !dataset.blend.empty())
      report.broken(dataset.blend.empty() ? "dataset.data_path" : "dataset.blend",
                    "give either this or train_data_path, valid_data_path and test_data_path");
    for (std::size_t i = 0; i < keys.size(); ++i) {
      shape.blends[i] = paths_of(keys[i].key, keys[i].paths);
      check_blend(keys[i].key, shape.blends[i], report);
    }
  } else if (weights) {
    shape.blends.fill(common_blend(dataset, report));
  } else {
    shape.blends.fill(paths_of("dataset.data_path", dataset.data_path));
    check_blend("dataset.data_path", shape.blends[0], report);
  }
  return shape;
}

// Names of validation sets become keys of metrics.jsonl.
bool is_plain_name(std::string_view name) {
  return !name.empty() && name.size() <= 64 &&
         std::ranges::all_of(name, [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; });
}

std::vector<std::string> names_of_sets(const DatasetConfig& dataset, const BlendShape& valid, Report& report) {
  constexpr std::string_view key = "dataset.multiple_validation_sets", names_key = "dataset.validation_set_names";
  constexpr std::size_t max_sets = 128;
  if (!dataset.multiple_validation_sets) {
    if (!dataset.validation_set_names.empty()) report.broken(names_key, "needs multiple_validation_sets=true");
    return {};
  }
  if (!valid.weights.empty()) report.broken(key, "validation data with weights is one blend, not several sets");
  if (valid.prefixes.size() > max_sets) report.broken(key, "{} sets; at most {}", valid.prefixes.size(), max_sets);
  std::vector<std::string> names = dataset.validation_set_names;
  if (names.empty())
    for (const std::string& path : valid.prefixes) names.push_back(path.substr(path.find_last_of('/') + 1));
  if (names.size() != valid.prefixes.size())
    report.broken(names_key, "{} names for {} paths", names.size(), valid.prefixes.size());
  for (std::size_t i = 0; i < names.size(); ++i)
    if (!is_plain_name(names[i]) || std::find(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(i),
                                              names[i]) != names.begin() + static_cast<std::ptrdiff_t>(i))
      report.broken(names_key, "'{}': names must differ, and have 1 to 64 printable characters", names[i]);
  return names;
}

}  // namespace

SplitShape resolve_split(const std::string& text, Report& report) {
  std::array<double, 3> weights{};
  std::size_t count = 0;
  double sum = 0;
  bool valid = !text.empty();
  for (std::size_t start = 0; valid && start <= text.size(); ++count) {
    const std::size_t comma = std::min(text.find(',', start), text.size());
    const auto weight = number_in(std::string_view(text).substr(start, comma - start));
    valid = count < weights.size() && weight && *weight >= 0 && std::isfinite(*weight);
    if (valid) sum += weights[count] = *weight;
    start = comma + 1;
  }
  if (!valid || !(sum > 0) || !std::isfinite(sum)) {
    report.broken("dataset.split", "must be up to three weights such as 969,30,1, not all zero");
    return {};
  }
  return {.train = weights[0] / sum, .valid = weights[1] / sum, .test = weights[2] / sum};
}

IndexedShape resolve_indexed(const RunConfig& config, Purpose purpose, Report& report) {
  const DatasetConfig& dataset = config.dataset;
  check_unused(dataset, report);
  if (dataset.kind != DatasetKind::indexed && dataset.kind != DatasetKind::sft) return {};
  if (dataset.kind == DatasetKind::sft) check_chat(dataset, report);
  if (dataset.kind == DatasetKind::indexed && (config.train.seed < 0 || config.train.seed > 0xffffffff))
    report.broken("train.seed", "must be from 0 to 4294967295 for dataset.kind=indexed, whose order it decides");
  IndexedShape shape = resolve_splits(dataset, report);
  const auto& train_paths = shape.data_per_split ? dataset.train_data_path : dataset.data_path;
  const auto& valid_paths = shape.data_per_split ? dataset.valid_data_path : dataset.data_path;
  if (train_paths.empty() && shape.blends[0].prefixes.empty() && purpose == Purpose::train)
    report.missing(shape.data_per_split ? "dataset.train_data_path" : "dataset.data_path", "dataset.kind={} needs {}",
                   name_of(dataset.kind),
                   dataset.kind == DatasetKind::indexed ? "a prefix (of PREFIX.bin and PREFIX.idx) or a list of them"
                                                        : "a file of conversations, a folder, a pattern or a list");
  const BlendShape& valid = shape.blends[1];
  if (dataset.full_validation && !valid.weights.empty() && !(shape.data_per_split && valid.prefixes.size() == 1))
    report.broken("dataset.full_validation", "each sample once is not possible in a blend with weights");
  const bool reported = valid.prefixes.empty() && !valid_paths.empty();  // the paths themselves are invalid
  if (!reported) shape.valid_names = names_of_sets(dataset, valid, report);
  return shape;
}

void check_data_path(const DatasetConfig& dataset, Purpose purpose, Report& report) {
  const bool cyclic = dataset.dataloader_type == DataloaderType::cyclic;
  if (cyclic && dataset.kind == DatasetKind::mock)
    report.broken("dataset.dataloader_type", "mock data has no end and so no epochs; only single is possible");
  if (!cyclic && !dataset.data_sharding)
    report.broken("dataset.data_sharding", "only dataset.dataloader_type=cyclic has it");
  if (dataset.kind == DatasetKind::indexed || dataset.kind == DatasetKind::sft) return;
  if (dataset.kind == DatasetKind::mock && !dataset.data_path.empty())
    report.broken("dataset.data_path",
                  "dataset.kind=mock reads no files; set dataset.kind=text or indexed to read them, or "
                  "dataset.data_path=[] to leave them");
  if (dataset.kind == DatasetKind::text && dataset.data_path.empty() && purpose == Purpose::train)
    report.missing("dataset.data_path", "dataset.kind=text needs a file, a folder, a pattern or a list of them");
  if (dataset.kind == DatasetKind::text) check_no_weights("dataset.data_path", dataset.data_path, dataset.kind, report);
  for (const std::string& path : dataset.data_path)
    if (path.empty()) report.broken("dataset.data_path", "an empty path");
}

}  // namespace tera
