#pragma once
// What a run logs, and how often.

#include <cstdint>
#include <span>
#include <string>

namespace tera {

struct Field;

struct LoggerConfig {
  std::int64_t log_interval = 1;
  bool log_expert_load = false;
  std::string tensorboard_dir;

  static std::span<const Field> fields();
  bool operator==(const LoggerConfig&) const = default;
};

}  // namespace tera
