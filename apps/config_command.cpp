// tera config: every value of a configuration with where it came from; or all about one key.

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "apps/print_warnings.h"
#include "tera/base/error.h"
#include "tera/setup/describe.h"
#include "tera/setup/resolve.h"
#include "tera/train/stored_run.h"

namespace tera {
namespace {

struct ConfigOptions {
  std::string file;
  std::vector<std::string> overrides;
  std::string explain;
  std::optional<int> world;
  bool markdown = false;
};

std::string config_text(const ConfigOptions& options) {
  if (options.markdown) return config_markdown();
  if (options.file.empty()) {
    require_user(!options.explain.empty(), "tera config needs a YAML file, or --explain KEY");
    return explain_key(options.explain, nullptr);
  }
  const LoadedConfig loaded = load_config(options.file, options.overrides, find_stored_run);
  if (!options.explain.empty()) return explain_key(options.explain, &loaded);
  const int world = options.world.value_or(smallest_world(loaded.config));
  const Setup setup = resolve(loaded.config, Purpose::plan, &loaded.origins, world);
  print_warnings(setup);
  return annotated_yaml(setup, loaded.origins);
}

}  // namespace

void add_config_command(Command app) {
  auto options = std::make_shared<ConfigOptions>();
  Command command = app.add_subcommand("config", "show a configuration, each value with where it came from");
  command.add_option("config", options->file, "YAML file").type_name("CONFIG.yaml");
  command.add_option("overrides", options->overrides, "values that win over the file's").type_name("section.key=value");
  command.add_option("--explain", options->explain, "tell about one key or section").type_name("KEY");
  command.add_option("--world", options->world, "ranks of the run; without it, as few as the layout needs")
      .type_name("N");
  command.add_flag("--markdown", options->markdown, "").hidden();  // writes docs/config.md
  command.callback([options] {
    const std::string text = config_text(*options);
    std::fwrite(text.data(), 1, text.size(), stdout);
  });
}

}  // namespace tera
