#pragma once
// One value of a field table: read from YAML, written as YAML, described for messages.

#include <string>

#include "tera/config/field.h"
#include "tera/config/yaml.h"

namespace tera {

// Returns an empty string, or what is wrong; the value is then as before.
std::string read_value(const Field& field, const YamlNode& node, void* value);

// Writes the value as YAML on one line; reading it back gives bitwise the same value.
std::string write_value(const Field& field, const void* value);

// "whole number, at least 1"; "gpt, llama or qwen2".
std::string describe_type(const Field& field);

// Returns an empty string, or the limit that the value breaks: "must be at least 1", "must be UTF-8 text, ...".
std::string check_limits(const Field& field, const void* value);

}  // namespace tera
