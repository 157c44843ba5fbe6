#pragma once

#include <CLI/CLI.hpp>

namespace tera {

// tera config CONFIG.yaml [section.key=value ...] [--explain KEY]
void add_config_command(CLI::App& app);

}  // namespace tera
