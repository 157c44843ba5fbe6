#pragma once
// Diagnoses paths that should lead to a checkpoint and do not.

#include <filesystem>
#include <string>

namespace tera {

// Says what is at the path instead and what was perhaps meant; empty when the path may be right. Opens no file.
std::string why_no_checkpoint(const std::filesystem::path& path);

// Whether the folder is a checkpoint or a folder of checkpoints, judged by the names in it.
bool holds_checkpoints(const std::filesystem::path& folder);

}  // namespace tera
