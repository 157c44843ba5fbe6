#pragma once
// The tokenizer of a Hugging Face folder, for runs and commands that name no other.

#include <filesystem>
#include <optional>

#include "tera/config/run_config.h"

namespace tera {

// The folder's tokenizer, if ours gives the same ids as transformers: tokenizer.json, or GPT-2's vocab.json and
// merges.txt. None if there is no such file, or if transformers would interpret it in another way.
std::optional<TokenizerConfig> find_hf_tokenizer(const std::filesystem::path& folder, const ModelFamily& family);

// Why find_hf_tokenizer() found none, and what to do.
std::string why_no_hf_tokenizer(const std::filesystem::path& folder);

// Whether the run uses another tokenizer than that of its model.hf folder; true without model.hf.
bool uses_custom_tokenizer(const RunConfig& config);

}  // namespace tera
