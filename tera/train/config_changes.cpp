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
#include "tera/hf/config/hf_config.h"
#include "tera/setup/load.h"

namespace tera {
namespace {

constexpr std::array<std::string_view, 7> compared{"model.",   "train.",     "optimizer.",      "scheduler.",
                                                   "dataset.", "tokenizer.", "mixed_precision."};

// Keys that set paths, speed, duration or logging. The micro-batch size is not one of them: losses that are divided by
// its own targets, and load balancing losses, change with it.
constexpr std::array<std::string_view, 14> free_to_change{
    "model.hf",          "model.recompute",     "model.make_vocab_size_divisible_by",
    "train.train_iters", "train.train_samples", "train.cuda_graph_impl",
    "train.eval_",       "train.exit_",         "optimizer.use_distributed_optimizer",
    "dataset.num_",      "dataset.data_cache",  "dataset.full_validation",
    "model.offload_",    "train.seed"};  // the last: refused elsewhere

// Prefixes of keys that decide which tensors a model has, or their shapes. The vocabulary is left out: it may be a
// tokenizer's, so the tensors themselves say more about it.
constexpr std::array<std::string_view, 25> deciding_shapes{"model.num_",
                                                           "model.hidden_size",
                                                           "model.ffn_",
                                                           "model.kv_",
                                                           "model.max_position_",
                                                           "model.position_",
                                                           "model.activation",
                                                           "model.normalization",
                                                           "model.add_",
                                                           "model.qk_layernorm",
                                                           "model.multi_latent_attention",
                                                           "model.untie_",
                                                           "model.mla.q_lora_rank",
                                                           "model.mla.kv_lora_rank",
                                                           "model.mla.qk_",
                                                           "model.mla.v_head_dim",
                                                           "model.moe.num_experts",
                                                           "model.moe.ffn_",
                                                           "model.moe.layer_freq",
                                                           "model.moe.first_k_dense",
                                                           "model.moe.router_enable_expert_bias",
                                                           "model.moe.decoder_sparse_step",
                                                           "model.moe.mlp_only_layers",
                                                           "model.moe.shared_expert_intermediate_size",
                                                           "model.moe.shared_expert_gate"};

// Keys of these for which 0 means that the value is derived from other keys.
constexpr std::array<std::string_view, 5> left_open_by_0{"model.ffn_hidden_size", "model.num_query_groups",
                                                         "model.kv_channels", "model.max_position_embeddings",
                                                         "model.moe.ffn_hidden_size"};

bool begins_with_any(std::string_view key, std::span<const std::string_view> prefixes) {
  return std::ranges::any_of(prefixes, [&](std::string_view prefix) { return key.starts_with(prefix); });
}

bool matters(std::string_view key) { return begins_with_any(key, compared) && !begins_with_any(key, free_to_change); }

std::map<std::string, std::string> values_that_matter(const RunConfig& config) {
  std::map<std::string, std::string> values;
  for_each_value(config, [&](const std::string& key, const Field& field, const void* value) {
    if (matters(key)) values[key] = write_value(field, value);
  });
  return values;
}

struct Change {
  std::string key, stored, wanted;
};

// Changes that explain other shapes sort first. A size that one side leaves to be derived may turn out equal.
enum class Weight : std::uint8_t { shapes, perhaps_shapes, none };
Weight weigh(const Change& change) {
  const bool open = std::ranges::find(left_open_by_0, change.key) != left_open_by_0.end() &&
                    (change.stored == "0" || change.wanted == "0");
  if (!begins_with_any(change.key, deciding_shapes)) return Weight::none;
  return open ? Weight::perhaps_shapes : Weight::shapes;
}

// Changed keys of the model that decide what is computed. Where one certainly explains other shapes, those that only
// may are left out.
std::vector<Change> model_changes(const RunConfig& stored, const RunConfig& wanted) {
  std::vector<Change> changes;
  for_each_value(wanted, [&](const std::string& key, const Field& field, const void* value) {
    if (!key.starts_with("model.") || !matters(key) || key == "model.arch") return;
    if (hf_decides(key.substr(key.find('.') + 1)) || key == "model.mtp_num_layers")
      changes.push_back({key, {}, write_value(field, value)});
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
    stored = load_config_text(stored_yaml, "manifest.json").config;
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
