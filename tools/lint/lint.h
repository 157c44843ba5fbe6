#pragma once
// Runs the rules over a repository.

#include <filesystem>
#include <string>
#include <vector>

#include "tools/lint/rules.h"

namespace tera::lint {

struct FileSize {
  std::string path;
  std::size_t lines = 0;
};

struct Report {
  std::vector<Finding> findings;  // by path and line; findings about folders last
  std::vector<FileSize> sizes;    // all sources, longest first
};

Report check_repository(const std::filesystem::path& root);

}  // namespace tera::lint
