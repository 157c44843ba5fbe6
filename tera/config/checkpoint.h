#pragma once
// Where the trained weights go.

#include <span>
#include <string>

namespace tera {

struct Field;

struct CheckpointConfig {
  std::string save;

  static std::span<const Field> fields();
  bool operator==(const CheckpointConfig&) const = default;
};

}  // namespace tera
