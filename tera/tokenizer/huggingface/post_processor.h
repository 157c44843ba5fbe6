#pragma once
// The post-processor of a `tokenizer.json`, which adds special tokens around the ids of a text: the last step of
// encoding.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace tera {

struct PostProcessor {
  std::vector<std::int32_t> before, after;
};

PostProcessor read_post_processor(const nlohmann::json& value, const std::string& path);

}  // namespace tera
