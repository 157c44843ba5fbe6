#pragma once
// Paths that should lead to a checkpoint and do not.

#include <filesystem>
#include <string>

namespace tera {

// What is there instead and what was perhaps meant; empty where there is nothing to say. It is not opened.
std::string why_no_checkpoint(const std::filesystem::path& path);

// Whether it is a checkpoint or a folder of them, by the names in it.
bool holds_checkpoints(const std::filesystem::path& folder);

}  // namespace tera
