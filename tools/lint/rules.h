#pragma once
// The house rules that a compiler does not check. Each rule checks one file and reports the lines that break it.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "tools/lint/source_text.h"

namespace tera::lint {

struct Finding {
  std::string path;
  std::size_t line = 0;  // from 1; 0: about the file or folder
  std::string message;
};

// C++ and CUDA files: include order, #pragma once, environment, console output, line length.
std::vector<Finding> check_source(const SourceFile& file);

// Any text file: no paths into somebody's home folder.
std::vector<Finding> check_text(const SourceFile& file);

bool is_header(std::string_view path);
bool is_source(std::string_view path);  // including headers

}  // namespace tera::lint
