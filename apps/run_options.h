#pragma once
// What every command that reads a run's config takes: CONFIG.yaml [section.key=value ...]; and what those take that run
// on several ranks.

#include <optional>
#include <string>
#include <vector>

#include "apps/command.h"
#include "tera/config/load.h"
#include "tera/config/resolve.h"
#include "tera/train/backend.h"
#include "tera/train/launch.h"
#include "tera/train/stored_run.h"

namespace tera {

struct RunOptions {
  std::string config;
  std::vector<std::string> overrides;
  std::optional<int> ranks;

  void add_to(Command command) {
    command.add_option("config", config, "the run's YAML file").required().type_name("CONFIG.yaml");
    command.add_option("overrides", overrides, "values in place of those in the file").type_name("section.key=value");
  }
  void add_ranks_to(Command command) {
    command
        .add_option("--ranks", ranks, "ranks to run as threads of this process; without it, as many as mpirun started")
        .type_name("N");
  }
  Setup load(Purpose purpose, const Launch& launch = {}) const {
    const LoadedConfig loaded = load_config(config, overrides, find_stored_run);
    RunConfig settled = settle(loaded.config);
    share_cores(settled.dist, launch);
    Setup setup = resolve(settled, purpose, &loaded.origins, launch.world);
    for (std::string& warning : device_warnings(loaded.config.dist)) setup.warnings.push_back(std::move(warning));
    return setup;
  }
};

}  // namespace tera
