#pragma once
// Golden results of the steps of tokenizers, made by tools/reference/dump_text_steps.py.

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace tera::test {

inline const nlohmann::json& text_steps() {
  static const nlohmann::json golden = nlohmann::json::parse(std::ifstream(TERA_GOLDEN_DATA "/text_steps.json"));
  return golden;
}

}  // namespace tera::test
