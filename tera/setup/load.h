#pragma once
// A RunConfig from its sources, the later ones winning: built-in defaults, defaults of model.arch, the files named by
// `extends`, the file itself, overrides from the command line. With model.hf the model's shape is read from the
// Hugging Face folder, and sources that contradict it are errors.

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tera/config/family.h"
#include "tera/config/run_config.h"

namespace tera {

// Full key -> where its value was set: "configs/quickstart.yaml:12", "command line", "default of model.arch=llama". A
// key that is not listed has its built-in default.
using Origins = std::map<std::string, std::string, std::less<>>;

struct LoadedConfig {
  RunConfig config;
  Origins origins;
};

// The configuration in a checkpoint, for a run that takes its model from there.
struct StoredRun {
  std::string where;      // for messages
  RunConfig config;       // the tokenizer's files are those in the checkpoint
  bool custom_tokenizer;  // it is not the tokenizer of model.hf
  std::string hf_config;  // config.json of the folder that the model came from, or empty
};
// UserError if there is none.
using FindStoredRun = std::function<StoredRun(const std::string& folder, Families families)>;

// `overrides` are "section.key=value", the value in YAML. Everything wrong in the files and overrides is reported in
// one UserError; whether the values make sense together is for resolve() to say.
//
// With `find_stored`, a run without model keys takes its model from the checkpoint that it resumes or starts from; a
// run whose model.hf folder is gone uses the config.json that the checkpoint stores. `families`: those that model.arch
// and config.json may name.
LoadedConfig load_config(const std::string& path, std::span<const std::string> overrides = {},
                         const FindStoredRun& find_stored = {}, Families families = built_in_families());

// Loads a complete configuration from text, as a checkpoint stores it; `source` names it in messages. The folder of
// model.hf is not read and need not exist.
LoadedConfig load_config_text(std::string_view yaml, const std::string& source,
                              Families families = built_in_families());

// Replaces loaded values; overrides are as in load_config().
void apply_overrides(LoadedConfig& loaded, std::span<const std::string> overrides,
                     Families families = built_in_families());

}  // namespace tera
