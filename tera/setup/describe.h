#pragma once
// Writes a configuration as YAML for the run folder, annotated YAML with origins, help text and documentation.

#include <string>
#include <string_view>

#include "tera/config/setup.h"
#include "tera/setup/load.h"

namespace tera {

// All values, as the user wrote them; load_config() and resolve() of this text give the same Setup. A key that is left
// to be derived has its derived value in a comment.
std::string resolved_yaml(const Setup& setup);

// All values, each with a comment: where it was set, and the derived value if it is left to be derived.
std::string annotated_yaml(const Setup& setup, const Origins& origins);

// Explains one key: help, type, default, and value and origin if `loaded` is not null. A section lists its keys. A name
// that only one section has needs no section, and may be written as a flag. An unknown key is a UserError that names
// the nearest key.
std::string explain_key(std::string_view key, const LoadedConfig* loaded);

// Every key with type, default and help, for --help.
std::string config_help();

// The text of docs/config.md.
std::string config_markdown();

}  // namespace tera
