#pragma once
// Words of a command line, "key=value", that a test puts behind a config.

#include <string>
#include <vector>

namespace tera::test {

using Overrides = std::vector<std::string>;

inline Overrides operator+(Overrides a, const Overrides& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace tera::test
