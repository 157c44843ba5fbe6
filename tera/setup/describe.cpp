#include "tera/setup/describe.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <vector>

#include "tera/base/error.h"
#include "tera/base/joined.h"
#include "tera/config/catalog.h"
#include "tera/config/family.h"
#include "tera/config/value.h"

namespace tera {
namespace {

using Comments = std::map<std::string, std::string>;

void derive_parallel(const Setup& setup, Comments& derived) {
  const DistConfig& dist = setup.config.dist;
  const ParallelShape& parallel = setup.parallel;
  if (setup.model.moe && dist.expert_tensor_parallel_size == 0)
    derived["dist.expert_tensor_parallel_size"] = fmt::format("{}", parallel.mesh.tp);
  if (dist.virtual_pipeline_model_parallel_size == 0)
    derived["dist.virtual_pipeline_model_parallel_size"] = fmt::format("{}", parallel.chunks);
  if (dist.pipeline_schedule == PipelineScheduleKind::automatic)
    derived["dist.pipeline_schedule"] = name_of(parallel.schedule);
  if (dist.microbatch_group_size_per_vp_stage == 0 && parallel.schedule == PipelineScheduleKind::interleaved)
    derived["dist.microbatch_group_size_per_vp_stage"] = fmt::format("{}", parallel.group_size);
  if (parallel.sharding != setup.config.ddp.data_parallel_sharding_strategy)
    derived["ddp.data_parallel_sharding_strategy"] = name_of(parallel.sharding);
  if (setup.config.ddp.bucket_size == 0) derived["ddp.bucket_size"] = fmt::format("{}", parallel.bucket_size);
}

// Derived values of the keys that the user left to be derived.
Comments derived_values(const Setup& setup) {
  const ModelConfig& model = setup.config.model;
  const TrainConfig& train = setup.config.train;
  Comments derived;
  const auto note = [&](const char* key, bool open, std::int64_t value) {
    if (open && value != 0) derived[key] = fmt::format("{}", value);
  };
  note("model.ffn_hidden_size", model.ffn_hidden_size == 0, setup.model.ffn);
  if (setup.model.moe) note("model.moe.ffn_hidden_size", model.moe.ffn_hidden_size == 0, setup.model.moe->ffn);
  note("model.num_query_groups", model.num_query_groups == 0, setup.model.kv_heads);
  note("model.kv_channels", model.kv_channels == 0, setup.model.head_dim);
  note("model.vocab_size", model.vocab_size == 0, setup.model.vocab);
  note("model.max_position_embeddings", model.max_position_embeddings == 0, setup.model.max_positions);
  note("model.rope_scaling.original_max_position_embeddings",
       model.rope_scaling.type != RopeScalingKind::none && model.rope_scaling.original_max_position_embeddings == 0,
       setup.model.rope.scaling.original_max_position_embeddings);
  note("model.mla.original_max_position_embeddings",
       model.mla.rotary_scaling_factor > 1 && model.mla.original_max_position_embeddings == 0,
       setup.model.rope.scaling.original_max_position_embeddings);
  note("train.global_batch_size", train.global_batch_size == 0, setup.batch.global_batch);
  note("train.train_iters", train.train_iters == 0, setup.batch.train_iters);
  note("scheduler.lr_decay_samples",
       setup.config.scheduler.lr_decay_iters == 0 && setup.config.scheduler.lr_decay_samples == 0,
       setup.schedule.decay_samples);
  note("model.recompute_num_layers", setup.model.recompute.full && model.recompute_num_layers == 0,
       setup.model.recompute.layers);
  derive_parallel(setup, derived);
  if (setup.config.run.dir.empty()) derived["run.dir"] = setup.run_dir;
  return derived;
}

// Appends "key: value" lines, nested sections indented, comments in one column per section.
void append_section(std::string& out, std::span<const Field> fields, const void* section, const std::string& prefix,
                    const Comments& comments) {
  const std::string indent(static_cast<std::size_t>(2 * std::count(prefix.begin(), prefix.end(), '.')), ' ');
  std::vector<std::pair<std::string, const Field*>> lines;
  std::size_t width = 0;
  for (const Field& field : fields) {
    const bool nested = field.kind == FieldKind::section;
    lines.emplace_back(
        fmt::format("{}{}:{}", indent, field.name, nested ? "" : ' ' + write_value(field, field.address_in(section))),
        &field);
    if (lines.back().first.size() < 60) width = std::max(width, lines.back().first.size());
  }
  for (const auto& [line, field] : lines) {
    if (prefix.empty() && !out.empty()) out += '\n';
    const std::string key = prefix + std::string(field->name);
    const auto comment = comments.find(key);
    out += comment == comments.end() ? line : fmt::format("{:{}}  # {}", line, width, comment->second);
    out += '\n';
    if (field->kind == FieldKind::section)
      append_section(out, field->section(), field->address_in(section), key + ".", comments);
  }
}

std::string to_yaml(const RunConfig& config, const Comments& comments) {
  std::string out;
  append_section(out, RunConfig::fields(), &config, "", comments);
  return out;
}

std::string origin_of(const Origins& origins, const std::string& key) {
  const auto origin = origins.find(key);
  return origin == origins.end() ? "default" : origin->second;
}

std::string default_of(const std::string& key) {
  std::string text;
  for_each_value(RunConfig{}, [&](const std::string& name, const Field& field, const void* value) {
    if (name == key) text = field.required ? "none, must be given" : write_value(field, value);
  });
  return text;
}

// "llama: RMSNorm, qwen2: RMSNorm": families whose default differs from the built-in one.
std::string arch_defaults_of(const std::string& key) {
  std::string out;
  for (const ModelFamily* family : built_in_families()) {
    RunConfig config;
    family->defaults(config.model);
    for_each_value(config, [&](const std::string& name, const Field& field, const void* value) {
      const std::string text = write_value(field, value);
      if (name != key || field.required || text == default_of(key)) return;
      out += fmt::format("{}{}: {}", out.empty() ? "" : ", ", family->name, text);
    });
  }
  return out;
}

// "exp_avg_dtype" of "--exp-avg-dtype".
std::string without_dashes(std::string_view flag) {
  std::string key(flag.starts_with("--") ? flag.substr(2) : flag);
  std::ranges::replace(key, '-', '_');
  return key;
}

std::string explain_section(std::string_view key, const Field& section) {
  std::string out = fmt::format("{}\n  {}\n", key, section.help);
  std::size_t width = 0;
  for (const Field& field : section.section()) width = std::max(width, field.name.size());
  for (const Field& field : section.section()) out += fmt::format("  {:{}}  {}\n", field.name, width, field.help);
  return out;
}

// A row of the key table; no cell may contain a bar, which would end the cell.
std::string markdown_row(const std::string& key, const Field& field) {
  std::string fallback = default_of(key);
  fallback = field.required ? "required" : fmt::format("`{}`", fallback);
  const std::string by_arch = arch_defaults_of(key);
  if (!by_arch.empty()) fallback += fmt::format(" ({})", by_arch);
  return fmt::format("| `{}` | {} | {} | {} |\n", key.substr(key.find('.') + 1), describe_type(field), fallback,
                     field.help);
}

constexpr std::string_view markdown_head = R"(# Configuration

<!-- Written by `tera config --markdown`; a test compares the two. Edit the field tables in tera/config instead. -->

A run is described by a YAML file of sections. `tera config FILE` shows every value and where it came from,
`tera config FILE --explain KEY` tells about one key. Sources, the later ones winning:

1. built-in defaults (below);
2. defaults of the model family `model.arch` (below, in brackets);
3. the files named by `extends: other.yaml` or `extends: [a.yaml, b.yaml]`, relative to the file that names them;
4. the file itself;
5. overrides on the command line, `section.key=value`; the value is YAML, so lists are `[a, b]`.

Unknown keys, wrong types and broken rules are errors that name the file, the line and the nearest valid value; all of
them are reported at once. Where the text says `0: ...`, zero leaves the value to be derived. YAML anchors, aliases and
tags are not supported.
)";

}  // namespace

std::string resolved_yaml(const Setup& setup) {
  return "# The whole configuration of a run; can be given to tera train. Comments say what is derived.\n" +
         to_yaml(setup.config, derived_values(setup));
}

std::string annotated_yaml(const Setup& setup, const Origins& origins) {
  const Comments derived = derived_values(setup);
  Comments comments;
  for_each_value(setup.config, [&](const std::string& key, const Field&, const void*) {
    const auto value = derived.find(key);
    const std::string origin = origin_of(origins, key);
    comments[key] = value == derived.end() ? origin : fmt::format("{}; becomes {}", origin, value->second);
  });
  return to_yaml(setup.config, comments);
}

std::string explain_key(std::string_view key, const LoadedConfig* loaded) {
  const Field* field = find_field(key);
  if (field == nullptr) {
    if (const std::string name = without_dashes(key); name != key) return explain_key(name, loaded);
    const std::vector<std::string> named = keys_named(key);
    if (named.size() == 1) return explain_key(named.front(), loaded);
    const std::string advice =
        named.empty() ? advice_on_key(key) : fmt::format("did you mean {}?", joined(named, " or "));
    fail_user("there is no key {}{}{}", key, advice.empty() ? "" : "; ", advice);
  }
  if (field->kind == FieldKind::section) return explain_section(key, *field);
  const std::string name(key), by_arch = arch_defaults_of(name);
  std::string out = fmt::format("{}\n  {}\n  type:     {}\n  default:  {}\n", key, field->help, describe_type(*field),
                                default_of(name));
  if (!by_arch.empty()) out += fmt::format("  by arch:  {}\n", by_arch);
  if (loaded == nullptr) return out;
  for_each_value(loaded->config, [&](const std::string& known, const Field& known_field, const void* value) {
    if (known == key) out += fmt::format("  value:    {}\n", write_value(known_field, value));
  });
  return out + fmt::format("  from:     {}\n", origin_of(loaded->origins, name));
}

std::string config_help() {
  std::string out = "Keys of the configuration, also as overrides section.key=value:\n";
  for_each_value(RunConfig{}, [&](const std::string& key, const Field& field, const void*) {
    out += fmt::format("  {}\n      {} [{}; default {}]\n", key, field.help, describe_type(field), default_of(key));
  });
  return out;
}

std::string config_markdown() {
  std::string out(markdown_head);
  std::string section;
  for_each_value(RunConfig{}, [&](const std::string& key, const Field& field, const void*) {
    const std::string name = key.substr(0, key.find('.'));
    if (name != section) {
      out += fmt::format("\n## {}\n\n{}\n\n| key | type | default | meaning |\n|---|---|---|---|\n", name,
                         find_field(name)->help);
      section = name;
    }
    out += markdown_row(key, field);
  });
  return out;
}

}  // namespace tera
