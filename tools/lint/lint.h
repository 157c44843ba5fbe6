#pragma once
// Runs the rules over a whole repository.

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
  std::vector<Finding> findings;  // by path and line, those about folders last
  std::vector<FileSize> sizes;    // of all sources, longest first
};

Report check_repository(const std::filesystem::path& root);

}  // namespace tera::lint
