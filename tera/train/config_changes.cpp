#include "tera/train/config_changes.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

#include "tera/base/error.h"
#include "tera/config/catalog.h"
#include "tera/config/load.h"
#include "tera/config/value.h"

namespace tera {
namespace {

constexpr std::array<std::string_view, 6> compared{"model.",     "train.",   "optimizer.",
                                                   "scheduler.", "dataset.", "tokenizer."};

// Where, how fast and how long; and what is seen of a run.
constexpr std::array<std::string_view, 14> free_to_change{
    "model.hf",          "model.recompute",     "model.make_vocab_size_divisible_by",
    "train.train_iters", "train.train_samples", "train.micro_batch_size",
    "train.eval_",       "train.exit_",         "optimizer.use_distributed_optimizer",
    "dataset.num_",      "dataset.data_cache",  "dataset.full_validation",
    "model.offload_",    "train.seed"};  // the last: refused elsewhere

bool matters(std::string_view key) {
  const auto begins_key = [&](std::string_view begin) { return key.starts_with(begin); };
  return std::ranges::any_of(compared, begins_key) && std::ranges::none_of(free_to_change, begins_key);
}

std::map<std::string, std::string> values_that_matter(const RunConfig& config) {
  std::map<std::string, std::string> values;
  for_each_value(config, [&](const std::string& key, const Field& field, const void* value) {
    if (matters(key)) values[key] = write_value(field, value);
  });
  return values;
}

}  // namespace

std::string changes_since(const std::string& stored_yaml, const RunConfig& config) {
  std::map<std::string, std::string> before;
  try {
    before = values_that_matter(load_config_text(stored_yaml, "manifest.json").config);
  } catch (const UserError&) {
    return "its config, which this program cannot read";
  }
  std::string changes;
  for (const auto& [key, value] : values_that_matter(config))
    if (before[key] != value)
      changes += fmt::format("{}{} {:.200} -> {:.200}", changes.empty() ? "" : ", ", key, before[key], value);
  return changes;
}

}  // namespace tera
