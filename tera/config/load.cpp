#include "tera/config/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "tera/base/error.h"
#include "tera/base/file.h"
#include "tera/config/arch_defaults.h"
#include "tera/config/catalog.h"
#include "tera/config/hf_config.h"
#include "tera/config/problems.h"
#include "tera/config/value.h"
#include "tera/config/yaml.h"

namespace tera {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t max_extends_depth = 8;
constexpr std::size_t max_files = 64;  // two files that extend a third twice each, and so on, would multiply

// One source of values: a file, or an override as a tree of one branch.
struct Layer {
  YamlNode root;
  std::string file;        // empty for an override
  std::string assignment;  // an override as written

  std::string place(const YamlNode& node) const {
    return file.empty() ? fmt::format("override '{}'", assignment) : fmt::format("{}:{}", file, node.line);
  }
  std::string origin(const YamlNode& node) const { return file.empty() ? "command line" : place(node); }
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

// "model.rope_scaling.factor=8" becomes {model: {rope_scaling: {factor: 8}}}.
Layer parse_override(const std::string& text) {
  const std::size_t equals = text.find('=');
  const std::string key = text.substr(0, equals);
  const bool well_formed = equals != std::string::npos && key.find('.') != std::string::npos && !key.starts_with('.') &&
                           !key.ends_with('.') && key.find("..") == std::string::npos;
  require_user(well_formed, "'{}' is not an override; write section.key=value, as in train.train_iters=100", text);
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
  Reader(LoadedConfig& loaded, Problems& problems) : loaded_(loaded), problems_(problems) {}

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
      problems_.add("{}: {} is a section with keys of its own, not {}", layer.place(node), key, describe_node(node));
    }
  }

  void read_one(const Layer& layer, const YamlNode& node, const Field& field, void* value, const std::string& key) {
    const std::string wrong = read_value(field, node, value);
    if (wrong.empty()) {
      loaded_.origins[key] = layer.origin(node);
    } else {
      problems_.add("{}: {}: {}", layer.place(node), key, wrong);
    }
  }

  void report_unknown(const Layer& layer, const YamlNode& node, const std::string& prefix, const std::string& name,
                      std::span<const Field> fields) {
    const std::string key = prefix + name;
    const std::string nearest = nearest_key(key);
    std::string advice;
    if (find_field(key) != nullptr) {
      advice = "dots belong to the command line; in a file, write the section and under it the key";
    } else if (!nearest.empty()) {
      advice = fmt::format("did you mean {}?", nearest);
    } else {
      advice = fmt::format("{} has", prefix.empty() ? "a config" : prefix.substr(0, prefix.size() - 1));
      for (const Field& field : fields) advice += fmt::format("{} {}", &field == fields.data() ? "" : ",", field.name);
    }
    problems_.add("{}: unknown key {}; {}", layer.place(node), key, advice);
  }

  LoadedConfig& loaded_;
  Problems& problems_;
};

// What the last layer that has this key of the model section says; null when none has.
const YamlNode* find_in_model(const std::vector<Layer>& layers, std::string_view key) {
  for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) {
    const YamlNode* model = layer->root.find("model");
    const YamlNode* value = model == nullptr ? nullptr : model->find(key);
    if (value != nullptr) return value;
  }
  return nullptr;
}

// The family that is named; none when it is absent or misspelt, which is reported elsewhere.
std::optional<Arch> find_arch(const std::vector<Layer>& layers) {
  const YamlNode* arch = find_in_model(layers, "arch");
  return arch == nullptr ? std::nullopt : parse_enum<Arch>(arch->text);
}

void start_from_arch(Arch arch, LoadedConfig& loaded) {
  const ModelConfig before;
  apply_arch_defaults(arch, loaded.config.model);
  for (const Field& field : ModelConfig::fields()) {
    if (field.kind == FieldKind::section) continue;
    const bool changed =
        write_value(field, field.address_in(&before)) != write_value(field, field.address_in(&loaded.config.model));
    if (changed)
      loaded.origins[fmt::format("model.{}", field.name)] = fmt::format("default of model.arch={}", name_of(arch));
  }
}

// Every value of the model section, by its key within it.
void for_each_model_value(const RunConfig& config,
                          FunctionRef<void(const std::string& key, const Field&, const void*)> visit) {
  constexpr std::string_view section = "model.";
  for_each_value(config, [&](const std::string& key, const Field& field, const void* value) {
    if (key.starts_with(section)) visit(key.substr(section.size()), field, value);
  });
}

// The model is what the folder says. Returns it, to compare with when the other sources have been read.
RunConfig start_from_hf(const std::string& folder, LoadedConfig& loaded) {
  const std::string file = (fs::path(folder) / "config.json").string();
  loaded.config.model = parse_hf_config(read_hf_config(folder), file);
  for_each_model_value(loaded.config, [&](const std::string& key, const Field&, const void*) {
    if (hf_decides(key)) loaded.origins["model." + key] = file;
  });
  return loaded.config;
}

// The folder's own tokenizer, unless the run names one.
void use_hf_tokenizer(const std::string& folder, LoadedConfig& loaded) {
  const fs::path file = fs::path(folder) / "tokenizer.json";
  if (loaded.origins.contains("tokenizer.tokenizer_type") || !path_exists(file)) return;
  loaded.config.tokenizer.tokenizer_type = TokenizerKind::hugging_face;
  loaded.config.tokenizer.tokenizer_model = folder;
  loaded.origins["tokenizer.tokenizer_type"] = loaded.origins["tokenizer.tokenizer_model"] = "model.hf";
}

void check_against_hf(const RunConfig& decided, const LoadedConfig& loaded, Problems& problems) {
  std::map<std::string, std::string> wanted;
  for_each_model_value(decided, [&](const std::string& key, const Field& field, const void* value) {
    wanted[key] = write_value(field, value);
  });
  for_each_model_value(loaded.config, [&](const std::string& key, const Field& field, const void* value) {
    const std::string written = write_value(field, value);
    if (!hf_decides(key) || written == wanted[key]) return;
    const auto origin = loaded.origins.find("model." + key);
    problems.add("model.{}={} ({}): the model in model.hf={} has {}; leave the key out", key, written,
                 origin == loaded.origins.end() ? "default" : origin->second, loaded.config.model.hf, wanted[key]);
  });
}

LoadedConfig read_layers(const std::vector<Layer>& layers, bool read_hf = true) {
  LoadedConfig loaded;
  Problems problems;
  const YamlNode* const hf = read_hf ? find_in_model(layers, "hf") : nullptr;
  std::optional<RunConfig> decided;
  if (hf != nullptr && !hf->text.empty()) {
    decided = start_from_hf(hf->text, loaded);
  } else if (const std::optional<Arch> arch = find_arch(layers)) {
    start_from_arch(*arch, loaded);
  }
  Reader reader(loaded, problems);
  for (const Layer& layer : layers) reader.read(layer);
  if (decided) {
    check_against_hf(*decided, loaded, problems);
    use_hf_tokenizer(loaded.config.model.hf, loaded);
  }
  problems.throw_if_any();
  return loaded;
}

}  // namespace

LoadedConfig load_config(const std::string& path, std::span<const std::string> overrides) {
  std::vector<Layer> layers;
  std::vector<std::string> chain;
  gather_file(path, chain, layers);
  for (const std::string& assignment : overrides) layers.push_back(parse_override(assignment));
  LoadedConfig loaded = read_layers(layers);
  if (loaded.config.run.name.empty()) {
    loaded.config.run.name = fs::path(path).stem().string();
    loaded.origins["run.name"] = "name of the config file";
  }
  return loaded;
}

LoadedConfig load_config_text(std::string_view yaml, const std::string& source) {
  YamlNode root = parse_yaml(yaml, source);
  require_user(root.kind == YamlNode::Kind::map && root.find("extends") == nullptr,
               "{}: the config is no map of sections alone", source);
  return read_layers({{.root = std::move(root), .file = source, .assignment = {}}}, /*read_hf=*/false);
}

void apply_overrides(LoadedConfig& loaded, std::span<const std::string> overrides) {
  Problems problems;
  Reader reader(loaded, problems);
  for (const std::string& assignment : overrides) reader.read(parse_override(assignment));
  problems.throw_if_any();
}

}  // namespace tera
