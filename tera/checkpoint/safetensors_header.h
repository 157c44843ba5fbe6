#pragma once
// The JSON header of a safetensors file: only the grammar; safetensors.cpp checks the numbers.

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tera/checkpoint/safetensors.h"

namespace tera {

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // in order of the header
  std::map<std::string, std::string> metadata;
};

// UserError naming `path` unless the text is one object of tensors, each with exactly dtype, shape and data_offsets,
// and at most one `__metadata__` of strings. Names that occur twice are refused.
SafetensorsHeader parse_safetensors_header(std::string_view json, const std::filesystem::path& path);

std::string format_safetensors_header(const SafetensorsHeader& header);

}  // namespace tera
