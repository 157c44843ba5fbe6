#pragma once
// Arguments of a command line, "key=value", that a test puts after a config.

#include <string>
#include <vector>

namespace tera::test {

using Overrides = std::vector<std::string>;

inline Overrides operator+(Overrides a, const Overrides& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace tera::test
