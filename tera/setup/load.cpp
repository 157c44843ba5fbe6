#include "tera/setup/load.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <vector>

#include "tera/base/error.h"
#include "tera/base/file.h"
#include "tera/config/catalog.h"
#include "tera/config/checkpoint_path.h"
#include "tera/config/foreign_names.h"
#include "tera/config/moe_layers.h"
#include "tera/config/problems.h"
#include "tera/config/value.h"
#include "tera/config/yaml.h"
#include "tera/hf/config/hf_config.h"
#include "tera/hf/config/hf_tokenizer.h"

namespace tera {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t max_extends_depth = 8;
constexpr std::size_t max_files = 64;  // bounds exponential growth through files that extend others twice
constexpr std::string_view arch_key = "model.arch", arch_origin = "default of model.arch=";

// One source of values: a file, or an override as a tree of one branch.
struct Layer {
  YamlNode root;
  std::string file;        // empty for an override
  std::string assignment;  // an override as written

  std::string location(const YamlNode& node) const {
    return file.empty() ? fmt::format("override '{}'", assignment) : fmt::format("{}:{}", file, node.line);
  }
  std::string origin(const YamlNode& node) const { return file.empty() ? "command line" : location(node); }
};

std::vector<std::string> extended_files(const YamlNode& root, const std::string& file) {
  const YamlNode* node = root.find("extends");
  if (node == nullptr) return {};
  std::vector<std::string> names;
  if (node->kind == YamlNode::Kind::scalar) names.push_back(node->text);
  for (const YamlNode& item : node->items) names.push_back(item.text);
  const bool all_named = std::none_of(names.begin(), names.end(), [](const std::string& name) { return name.empty(); });
  require_user(!names.empty() && all_named, "{}:{}: 'extends' takes a file or a list of files, not {}", file,
               node->line, describe_node(*node));
  for (std::string& name : names) name = (fs::path(file).parent_path() / name).lexically_normal().string();
  return names;
}

// Appends the layers of `file`: what it extends first, itself last. `chain` holds the files that led here.
void gather_file(const std::string& file, std::vector<std::string>& chain, std::vector<Layer>& layers) {
  std::error_code ignored;
  const std::string identity = fs::weakly_canonical(file, ignored).string();
  require_user(std::find(chain.begin(), chain.end(), identity) == chain.end(), "{}: extends itself, by way of {}", file,
               chain.empty() ? file : chain.back());
  require_user(chain.size() < max_extends_depth, "{}: more than {} files extend one another", file, max_extends_depth);
  require_user(layers.size() < max_files, "{}: more than {} files in all through 'extends'", file, max_files);
  YamlNode root = read_yaml_file(file);
  require_user(root.kind == YamlNode::Kind::map, "{}: a config is a map of sections (model, train, ...), not {}", file,
               describe_node(root));
  chain.push_back(identity);
  for (const std::string& extended : extended_files(root, file)) gather_file(extended, chain, layers);
  chain.pop_back();
  layers.push_back({.root = std::move(root), .file = file, .assignment = {}});
}

YamlNode parse_override_value(const std::string& text, const std::string& assignment) {
  return parse_yaml(text, fmt::format("override '{}'", assignment));
}

// A hint for an override without a section: "; did you mean train.seq_length=128?".
std::string meant_override(const std::string& text, std::size_t equals) {
  if (equals == std::string::npos || equals == 0 || text.substr(0, equals).find('.') != std::string::npos) return {};
  const std::string nearest = nearest_key(text.substr(0, equals));
  const std::string_view note = note_on_key(text.substr(0, equals));
  if (nearest.find('.') == std::string::npos) return note.empty() ? std::string() : fmt::format("; {}", note);
  std::string value = text.substr(equals);
  if (const std::string_view meant = value_for_key(text.substr(0, equals)); !meant.empty())
    value = value == "=false" ? "" : fmt::format("={}", meant);
  else if (!note.empty())
    value.clear();  // the value may have another meaning under that key
  return fmt::format("; did you mean {}{:.200}?{}{}", nearest, value, note.empty() ? "" : " ", note);
}

// "model.rope_scaling.factor=8" becomes {model: {rope_scaling: {factor: 8}}}.
Layer parse_override(const std::string& text) {
  const std::size_t equals = text.find('=');
  const std::string key = text.substr(0, equals);
  const bool well_formed = equals != std::string::npos && key.find('.') != std::string::npos && !key.starts_with('.') &&
                           !key.ends_with('.') && key.find("..") == std::string::npos;
  require_user(well_formed, "'{}' is not an override; write section.key=value, as in train.train_iters=100{}", text,
               meant_override(text, equals));
  require_user(std::count(key.begin(), key.end(), '.') < static_cast<std::ptrdiff_t>(max_yaml_depth),
               "override '{}': no key is that deep", text);
  YamlNode node = parse_override_value(text.substr(equals + 1), text);
  std::string_view rest = key;
  while (!rest.empty()) {
    const std::size_t dot = rest.rfind('.');
    YamlNode outer{.kind = YamlNode::Kind::map, .line = 1};
    outer.entries.emplace_back(std::string(rest.substr(dot == std::string_view::npos ? 0 : dot + 1)), std::move(node));
    node = std::move(outer);
    rest = dot == std::string_view::npos ? std::string_view{} : rest.substr(0, dot);
  }
  return {.root = std::move(node), .file = {}, .assignment = text};
}

// Writes the values of one layer after another into the config and remembers where they came from.
class Reader {
 public:
  Reader(LoadedConfig& loaded, Problems& problems, Families families)
      : loaded_(loaded), problems_(problems), families_(families) {}

  void read(const Layer& layer) { read_section(layer, layer.root, RunConfig::fields(), &loaded_.config, ""); }

 private:
  void read_section(const Layer& layer, const YamlNode& node, std::span<const Field> fields, void* section,
                    const std::string& prefix) {
    for (const auto& [name, child] : node.entries) {
      if (prefix.empty() && name == "extends") continue;
      const auto field = std::find_if(fields.begin(), fields.end(), [&](const Field& f) { return f.name == name; });
      if (field == fields.end()) {
        report_unknown(layer, child, prefix, name, fields);
      } else if (field->kind == FieldKind::section) {
        enter_section(layer, child, *field, field->address(section), prefix + name);
      } else {
        read_one(layer, child, *field, field->address(section), prefix + name);
      }
    }
  }

  void enter_section(const Layer& layer, const YamlNode& node, const Field& field, void* value,
                     const std::string& key) {
    if (node.kind == YamlNode::Kind::null) return;  // all its keys are commented out
    if (node.kind == YamlNode::Kind::map) {
      read_section(layer, node, field.section(), value, key + ".");
    } else {
      problems_.add("{}: {} is a section with keys of its own, not {}", layer.location(node), key, describe_node(node));
    }
  }

  void read_one(const Layer& layer, const YamlNode& node, const Field& field, void* value, const std::string& key) {
    const std::string wrong = key == arch_key ? read_family(node, value) : read_value(field, node, value);
    if (wrong.empty()) {
      loaded_.origins[key] = layer.origin(node);
    } else {
      problems_.add("{}: {}: {}{}", layer.location(node), key, wrong, note_on_value(key, node.text));
    }
  }

  // The field's own list has the families of this library alone.
  std::string read_family(const YamlNode& node, void* value) const {
    const bool scalar = node.kind == YamlNode::Kind::scalar;
    const ModelFamily* family = scalar ? find_family(node.text, families_) : nullptr;
    if (!family) return fmt::format("{} is not {}", describe_node(node), list_families(families_));
    *static_cast<const ModelFamily**>(value) = family;
    return {};
  }

  void report_unknown(const Layer& layer, const YamlNode& node, const std::string& prefix, const std::string& name,
                      std::span<const Field> fields) {
    const std::string key = prefix + name;
    std::string advice = advice_on_key(key);
    if (find_field(key) != nullptr) {
      advice = "dots belong to the command line; in a file, write the section and under it the key";
    } else if (advice.empty()) {
      advice = fmt::format("{} has", prefix.empty() ? "a config" : prefix.substr(0, prefix.size() - 1));
      for (const Field& field : fields) advice += fmt::format("{} {}", &field == fields.data() ? "" : ",", field.name);
    }
    problems_.add("{}: unknown key {}; {}", layer.location(node), key, advice);
  }

  LoadedConfig& loaded_;
  Problems& problems_;
  Families families_;
};

// The value in the last layer that has this key; null when no layer has it.
const YamlNode* find_last(const std::vector<Layer>& layers, std::string_view section, std::string_view key) {
  for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) {
    const YamlNode* node = layer->root.find(section);
    const YamlNode* value = node == nullptr ? nullptr : node->find(key);
    if (value != nullptr) return value;
  }
  return nullptr;
}

std::string text_of(const std::vector<Layer>& layers, std::string_view section, std::string_view key) {
  const YamlNode* value = find_last(layers, section, key);
  return value == nullptr ? std::string() : value->text;
}

// The value of model.arch; null when it is absent or misspelt, which is reported elsewhere.
const ModelFamily* find_arch(const std::vector<Layer>& layers, Families families) {
  return find_family(text_of(layers, "model", "arch"), families);
}

// Reads the checkpoint that the run would resume from (checkpoint.save), or else start from (checkpoint.load).
std::optional<StoredRun> read_stored(const std::vector<Layer>& layers, const FindStoredRun& find, Families families) {
  if (!find) return std::nullopt;
  const std::string save = text_of(layers, "checkpoint", "save"), load = text_of(layers, "checkpoint", "load");
  if (!save.empty() && holds_checkpoints(save)) {
    try {
      return find(save, families);
    } catch (const UserError&) {  // reported when the run looks for its starting point
    }
  }
  if (load.empty()) return std::nullopt;
  const std::string why = why_no_checkpoint(load);
  require_user(why.empty(), "checkpoint.load={}: {}", load, why);
  return find(load, families);
}

// Every value of the model section, by its key within it.
void for_each_model_value(const RunConfig& config,
                          FunctionRef<void(const std::string& key, const Field&, const void*)> visit) {
  constexpr std::string_view section = "model.";
  for_each_value(config, [&](const std::string& key, const Field& field, const void* value) {
    if (key.starts_with(section)) visit(key.substr(section.size()), field, value);
  });
}

void start_from_family(const ModelFamily& family, LoadedConfig& loaded) {
  std::map<std::string, std::string> before;
  for_each_model_value(loaded.config, [&](const std::string& key, const Field& field, const void* value) {
    before[key] = write_value(field, value);
  });
  family.defaults(loaded.config.model);
  for_each_model_value(loaded.config, [&](const std::string& key, const Field& field, const void* value) {
    if (write_value(field, value) != before[key])
      loaded.origins["model." + key] = fmt::format("{}{}", arch_origin, family.name);
  });
}

// A source of the model's shape outside the config: a Hugging Face folder or a checkpoint.
struct ModelSource {
  std::string name;  // "model.hf=DIR"
  std::string file;  // the file with the shape, for messages
  ModelConfig model;
  std::optional<TokenizerConfig> tokenizer;  // the model's own
  std::string no_tokenizer;                  // the error message if there is no tokenizer
};

ModelSource source_in_folder(const std::string& folder, Families families) {
  const std::string file = (fs::path(folder) / "config.json").string();
  ModelSource source{.name = "model.hf=" + folder,
                     .file = file,
                     .model = parse_hf_config(read_hf_config(folder), file, families),
                     .tokenizer = {},
                     .no_tokenizer = {}};
  source.tokenizer = find_hf_tokenizer(folder, *source.model.arch);
  source.no_tokenizer = why_no_hf_tokenizer(folder);
  return source;
}

ModelSource source_in_checkpoint(const StoredRun& stored) {
  return {
      .name = stored.where,
      .file = stored.where,
      .model = stored.config.model,
      .tokenizer = stored.config.tokenizer,
      .no_tokenizer = fmt::format("{} has no tokenizer.json; name one with tokenizer.tokenizer_model", stored.where)};
}

std::optional<ModelSource> find_model_source(const std::vector<Layer>& layers, const FindStoredRun& find_stored,
                                             Families families) {
  const std::string hf = text_of(layers, "model", "hf");
  if (hf.empty()) {
    if (find_last(layers, "model", "arch") != nullptr) return std::nullopt;
    const auto stored = read_stored(layers, find_stored, families);
    if (!stored) return std::nullopt;
    ModelSource source = source_in_checkpoint(*stored);
    if (stored->custom_tokenizer) source.model.hf.clear();  // the run replaced the tokenizer of that folder
    return source;
  }
  const bool has_weights =
      path_exists(fs::path(hf) / "model.safetensors") || path_exists(fs::path(hf) / "model.safetensors.index.json");
  require_user(has_weights || !holds_checkpoints(hf),
               "model.hf={}: a checkpoint, no Hugging Face folder; use checkpoint.load={}", hf, hf);
  if (path_exists(hf)) return source_in_folder(hf, families);
  const auto stored = read_stored(layers, find_stored, families);
  if (!stored || stored->hf_config.empty() || stored->config.model.hf != hf)
    return source_in_folder(hf, families);  // throws the error about the folder
  ModelSource source = source_in_checkpoint(*stored);
  source.model = parse_hf_config(stored->hf_config, stored->where, families);
  return source;
}

void start_from(const ModelSource& source, LoadedConfig& loaded) {
  loaded.config.model = source.model;
  for_each_model_value(loaded.config, [&](const std::string& key, const Field& field, const void*) {
    if (field.from_hf) loaded.origins["model." + key] = source.file;
  });
}

// Uses the model's own tokenizer, unless the run names one.
void use_tokenizer_of(const ModelSource& source, LoadedConfig& loaded, Problems& problems) {
  TokenizerConfig& tokenizer = loaded.config.tokenizer;
  const bool named = loaded.origins.contains("tokenizer.tokenizer_type");
  const bool open = named && tokenizer.tokenizer_type == TokenizerKind::hugging_face &&
                    tokenizer.tokenizer_model.empty();  // the folder provides the file
  if (named && !open) return;
  const bool supported = source.tokenizer && (!open || source.tokenizer->tokenizer_type == TokenizerKind::hugging_face);
  if (!supported) {
    if (open || loaded.config.dataset.kind != DatasetKind::mock) problems.add("{}", source.no_tokenizer);
    return;
  }
  const bool no_special = tokenizer.tokenizer_hf_no_include_special_tokens;
  tokenizer = *source.tokenizer;
  tokenizer.tokenizer_hf_no_include_special_tokens = no_special;
  for (const char* key : {"tokenizer_type", "tokenizer_model", "vocab_file", "merge_file"})
    loaded.origins[fmt::format("tokenizer.{}", key)] = source.name;
}

// Whether two different values of a key are equivalent: num_query_groups=0 equals num_attention_heads, and several
// settings select the same MoE layers.
bool means_the_same(std::string_view key, const ModelConfig& a, const ModelConfig& b) {
  const auto groups = [](const ModelConfig& model) {
    return model.num_query_groups == 0 ? model.num_attention_heads : model.num_query_groups;
  };
  if (key == "num_query_groups") return groups(a) == groups(b);
  constexpr std::array layer_keys{"moe.layer_freq", "moe.first_k_dense", "moe.decoder_sparse_step",
                                  "moe.mlp_only_layers"};
  if (std::ranges::find(layer_keys, key) == layer_keys.end()) return false;
  const auto is_sound = [](const ModelConfig& model) {  // invalid values are reported elsewhere
    return model.num_layers > 0 && model.moe.first_k_dense >= 0 && model.moe.layer_freq > 0 &&
           model.moe.decoder_sparse_step > 0;
  };
  return is_sound(a) && is_sound(b) && a.num_layers == b.num_layers &&
         moe_layers(a.moe, a.num_layers) == moe_layers(b.moe, b.num_layers);
}

void check_against(const ModelSource& source, const LoadedConfig& loaded, Problems& problems) {
  std::map<std::string, std::string> wanted;
  RunConfig decided;
  decided.model = source.model;
  for_each_model_value(decided, [&](const std::string& key, const Field& field, const void* value) {
    wanted[key] = write_value(field, value);
  });
  for_each_model_value(loaded.config, [&](const std::string& key, const Field& field, const void* value) {
    const std::string written = write_value(field, value);
    if (!field.from_hf || written == wanted[key]) return;
    if (means_the_same(key, loaded.config.model, source.model)) return;
    const auto origin = loaded.origins.find("model." + key);
    problems.add("model.{}={} ({}): the model in {} has {}; leave the key out", key, written,
                 origin == loaded.origins.end() ? "default" : origin->second, source.name, wanted[key]);
  });
}

void check_folders(const CheckpointConfig& checkpoint, Problems& problems) {
  if (!checkpoint.load.empty())
    if (const std::string why = why_no_checkpoint(checkpoint.load); !why.empty())
      problems.add("checkpoint.load={}: {}", checkpoint.load, why);
  if (!checkpoint.save.empty() && path_exists(fs::path(checkpoint.save) / "config.json") &&
      !holds_checkpoints(checkpoint.save))
    problems.add("checkpoint.save={}: it is a Hugging Face folder; give checkpoints a folder of their own",
                 checkpoint.save);
}

// A default coefficient of the model family is dropped if the run has no balancing loss, and repeated if it has
// several.
void resolve_loss_coefficient(LoadedConfig& loaded) {
  constexpr std::string_view key = "model.moe.aux_loss_coeff";
  MoeConfig& moe = loaded.config.model.moe;
  const auto origin = loaded.origins.find(key);
  const bool given = origin != loaded.origins.end() && !origin->second.starts_with(arch_origin);
  if (given || moe.aux_loss_coeff.size() != 1 || moe.aux_loss_coeff.front() == 0) return;
  const auto& types = moe.router_load_balancing_type;
  if (types.size() > 1) moe.aux_loss_coeff.assign(types.size(), moe.aux_loss_coeff.front());
  if (types.size() != 1 || types.front() != name_of(LoadBalancing::none)) return;
  moe.aux_loss_coeff = {0};
  loaded.origins[std::string(key)] = "router_load_balancing_type=none";
}

LoadedConfig read_layers(const std::vector<Layer>& layers, const std::optional<ModelSource>& source,
                         Families families) {
  LoadedConfig loaded;
  Problems problems;
  if (source) {
    start_from(*source, loaded);
  } else if (const ModelFamily* family = find_arch(layers, families)) {
    start_from_family(*family, loaded);
  }
  Reader reader(loaded, problems, families);
  for (const Layer& layer : layers) reader.read(layer);
  resolve_loss_coefficient(loaded);
  if (source) {
    check_against(*source, loaded, problems);
    use_tokenizer_of(*source, loaded, problems);
  }
  problems.throw_if_any();
  return loaded;
}

}  // namespace

LoadedConfig load_config(const std::string& path, std::span<const std::string> overrides,
                         const FindStoredRun& find_stored, Families families) {
  std::vector<Layer> layers;
  std::vector<std::string> chain;
  gather_file(path, chain, layers);
  for (const std::string& assignment : overrides) layers.push_back(parse_override(assignment));
  LoadedConfig loaded = read_layers(layers, find_model_source(layers, find_stored, families), families);
  Problems problems;
  check_folders(loaded.config.checkpoint, problems);
  problems.throw_if_any();
  if (loaded.config.run.name.empty()) {
    loaded.config.run.name = fs::path(path).stem().string();
    loaded.origins["run.name"] = "name of the config file";
  }
  return loaded;
}

LoadedConfig load_config_text(std::string_view yaml, const std::string& source, Families families) {
  YamlNode root = parse_yaml(yaml, source);
  require_user(root.kind == YamlNode::Kind::map && root.find("extends") == nullptr,
               "{}: the config is no map of sections alone", source);
  return read_layers({{.root = std::move(root), .file = source, .assignment = {}}}, std::nullopt, families);
}

void apply_overrides(LoadedConfig& loaded, std::span<const std::string> overrides, Families families) {
  Problems problems;
  Reader reader(loaded, problems, families);
  for (const std::string& assignment : overrides) reader.read(parse_override(assignment));
  resolve_loss_coefficient(loaded);
  problems.throw_if_any();
}

}  // namespace tera
