#pragma once
// The small files beside the weights of a Hugging Face folder: tokenizer, generation defaults, config.json.

#include <cstdint>
#include <filesystem>
#include <vector>

namespace tera {

// Those of the folder that go where its model goes; config.json is not one of them.
std::vector<std::filesystem::path> hf_carried_files(const std::filesystem::path& folder);

// Copies them, and config.json where asked, into a folder that is there. Links become files.
void copy_hf_files(const std::filesystem::path& from, const std::filesystem::path& to, bool with_config);

// Ids that end a text, from generation_config.json, else from config.json; none where neither says.
std::vector<std::int32_t> hf_stop_tokens(const std::filesystem::path& folder);

}  // namespace tera
