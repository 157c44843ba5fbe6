#pragma once
// The small files of a Hugging Face folder: tokenizer, generation defaults, config.json. They are copied along with the
// model.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tera/checkpoint/checkpoint.h"

namespace tera {

class HfFiles {
 public:
  HfFiles() = default;                             // no files
  explicit HfFiles(std::filesystem::path folder);  // files of a Hugging Face folder, perhaps links
  explicit HfFiles(const Checkpoint& checkpoint);  // files that its manifest lists, which are no links

  const std::vector<std::string>& names() const { return names_; }  // in the folder; config.json comes last
  bool has(std::string_view name) const;
  std::filesystem::path path(std::string_view name) const { return folder_ / name; }
  std::string read(std::string_view name) const;

 private:
  std::filesystem::path folder_;
  std::vector<std::string> names_;
};

// End-of-text token ids, from generation_config.json, else from config.json; empty if neither has any.
std::vector<std::int32_t> hf_stop_tokens(const HfFiles& files);

// The beginning-of-text token id, from generation_config.json, else from config.json; negative if neither has one.
std::int32_t hf_first_token(const HfFiles& files);

}  // namespace tera
