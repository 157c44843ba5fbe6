#pragma once
// A RunConfig from its sources, the later ones winning: built-in defaults, defaults of model.arch, the files named by
// `extends`, the file itself, overrides from the command line. With model.hf the model's shape is the folder's, and
// sources that say something else about it are wrong.

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tera/config/run_config.h"

namespace tera {

// Full key -> where its value was set: "configs/quickstart.yaml:12", "command line", "default of model.arch=llama". A
// key that is not listed has its built-in default.
using Origins = std::map<std::string, std::string, std::less<>>;

struct LoadedConfig {
  RunConfig config;
  Origins origins;
};

// What a checkpoint knows, for a run that leaves something to it.
struct StoredRun {
  std::string where;      // for messages
  RunConfig config;       // the tokenizer's files are those in the checkpoint
  bool own_tokenizer;     // not that of model.hf
  std::string hf_config;  // config.json of the folder that the model came from, or empty
};
using FindStoredRun = std::function<StoredRun(const std::string& folder)>;  // UserError: there is none

// `overrides` are "section.key=value", the value in YAML. Everything wrong in the files and overrides is reported in
// one UserError; whether the values make sense together is for resolve() to say.
//
// With `find_stored`, a run that says nothing of its model takes it from the checkpoint that it goes on or starts from;
// one whose model.hf is gone takes what the checkpoint kept of it.
LoadedConfig load_config(const std::string& path, std::span<const std::string> overrides = {},
                         const FindStoredRun& find_stored = {});

// From text that stands alone, as a checkpoint keeps it; `source` names it in messages. All values are in it: the
// folder that model.hf names is not read, and need not be there any more.
LoadedConfig load_config_text(std::string_view yaml, const std::string& source);

// Values in place of those that were loaded.
void apply_overrides(LoadedConfig& loaded, std::span<const std::string> overrides);

}  // namespace tera
