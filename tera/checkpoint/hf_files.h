#pragma once
// The small files beside the weights of a Hugging Face folder: tokenizer, generation defaults, config.json. They go
// where the model goes.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tera/checkpoint/checkpoint.h"

namespace tera {

class HfFiles {
 public:
  HfFiles() = default;                             // none
  explicit HfFiles(std::filesystem::path folder);  // those of a Hugging Face folder, perhaps links
  explicit HfFiles(const Checkpoint& checkpoint);  // those that its manifest lists, which are no links

  const std::vector<std::string>& names() const { return names_; }  // in the folder; config.json comes last
  bool has(std::string_view name) const;
  std::filesystem::path path(std::string_view name) const { return folder_ / name; }
  std::string read(std::string_view name) const;

 private:
  std::filesystem::path folder_;
  std::vector<std::string> names_;
};

// Ids that end a text, from generation_config.json, else from config.json; none where neither says.
std::vector<std::int32_t> hf_stop_tokens(const HfFiles& files);

// The id that begins one, likewise; negative where there is none.
std::int32_t hf_first_token(const HfFiles& files);

}  // namespace tera
