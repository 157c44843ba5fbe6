#pragma once
// Golden results of the steps of tokenizers, made by tools/reference/dump_text_steps.py.

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/paths.h"

namespace tera::test {

inline const nlohmann::json& text_steps() {
  static const nlohmann::json golden =
      nlohmann::json::parse(std::ifstream(source_path("tests/golden/data/text_steps.json")));
  return golden;
}

}  // namespace tera::test
