#pragma once
// The run's name and the folder for everything it writes.

#include <span>
#include <string>

namespace tera {

struct Field;

struct RunSection {
  std::string name;
  std::string dir;

  static std::span<const Field> fields();
  bool operator==(const RunSection&) const = default;
};

}  // namespace tera
