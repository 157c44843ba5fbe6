#pragma once
// A source file, as text and as code without comments and literals.

#include <string>
#include <string_view>
#include <vector>

namespace tera::lint {

struct SourceFile {
  std::string path;                // relative to the repository, with '/'
  std::vector<std::string> lines;  // as written
  std::vector<std::string> code;   // lines with comments and the insides of literals blanked
};

SourceFile read_source(std::string path, std::string_view text);

// Whether a line of code uses an identifier: the whole word, not part of a longer one.
bool uses(std::string_view code, std::string_view identifier);

}  // namespace tera::lint
