#pragma once
// The tokenizer of a Hugging Face folder, for runs and commands that name no other.

#include <filesystem>
#include <optional>

#include "tera/config/run_config.h"

namespace tera {

// The folder's own, where ours gives the ids that transformers would: tokenizer.json, or GPT-2's vocab.json and
// merges.txt. None: there is no such file, or transformers would make something else of them.
std::optional<TokenizerConfig> find_hf_tokenizer(const std::filesystem::path& folder, Arch arch);

// Why there is none, and what to do.
std::string why_no_hf_tokenizer(const std::filesystem::path& folder);

// Whether a run that began with model.hf has another tokenizer than that folder's. Without model.hf it has.
bool has_own_tokenizer(const RunConfig& config);

}  // namespace tera
