#pragma once
// Where checkpoints go, how often, and where a run starts from.

#include <cstdint>
#include <span>
#include <string>

namespace tera {

struct Field;

struct CheckpointConfig {
  std::string save;
  std::int64_t save_interval = 0;
  bool async_save = false;
  std::int64_t keep_last = 0;
  std::string load;
  bool finetune = false;
  bool verify = true;

  static std::span<const Field> fields();
  bool operator==(const CheckpointConfig&) const = default;
};

}  // namespace tera
