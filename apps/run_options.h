#pragma once
// Options of the commands that read a run's config: CONFIG.yaml [section.key=value ...]; and --ranks, of those that run
// on several ranks.

#include <optional>
#include <string>
#include <vector>

#include "apps/command.h"
#include "tera/setup/load.h"
#include "tera/setup/resolve.h"
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
    RunConfig resolved = resolve_auto(loaded.config);
    share_cores(resolved.dist, launch);
    Setup setup = resolve(resolved, purpose, &loaded.origins, launch.world);
    for (std::string& warning : device_warnings(loaded.config.dist)) setup.warnings.push_back(std::move(warning));
    return setup;
  }
};

}  // namespace tera
