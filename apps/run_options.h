#pragma once
// What every command that reads a run's config takes: CONFIG.yaml [section.key=value ...].

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "tera/config/load.h"
#include "tera/config/resolve.h"
#include "tera/train/backend.h"

namespace tera {

struct RunOptions {
  std::string config;
  std::vector<std::string> overrides;

  void add_to(CLI::App& command) {
    command.add_option("config", config, "the run's YAML file")->required()->type_name("CONFIG.yaml");
    command.add_option("overrides", overrides, "values in place of those in the file")->type_name("section.key=value");
  }
  Setup load(Purpose purpose) const {
    const LoadedConfig loaded = load_config(config, overrides);
    return resolve(settle(loaded.config), purpose, &loaded.origins);
  }
};

}  // namespace tera
