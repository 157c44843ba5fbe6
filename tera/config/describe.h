#pragma once
// A configuration in words: as YAML for the run folder, with origins for the user, as help, as documentation.

#include <string>
#include <string_view>

#include "tera/config/load.h"
#include "tera/config/setup.h"

namespace tera {

// All values, as written; feeding it back to load_config() and resolve() gives the same Setup. Where a key is left to
// be derived, a comment says what follows.
std::string resolved_yaml(const Setup& setup);

// The same with a comment behind each value: where it was set, and what follows from it where it is left to be derived.
std::string annotated_yaml(const Setup& setup, const Origins& origins);

// One key: help, type, default, and from `loaded`, where not null, value and origin. A section lists its keys. A name
// that is in one section only needs no section, and may be written as a flag. An unknown key is a UserError that names
// the nearest.
std::string explain_key(std::string_view key, const LoadedConfig* loaded);

// Every key with type, default and help, for --help.
std::string config_help();

// docs/config.md.
std::string config_markdown();

}  // namespace tera
