#pragma once
// The files beside a tokenizer.json: tokenizer_config.json and special_tokens_map.json, read as transformers reads
// them.

#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tera/tokenizer/huggingface/added_tokens.h"

namespace tera {

enum class SpecialRole : std::uint8_t { bos, eos, unk, sep, pad, cls, mask };  // in the order in which they are added

struct SpecialTokensConfig {
  std::array<std::optional<AddedToken>, 7> named;  // by SpecialRole
  std::vector<AddedToken> listed;                  // under added_tokens_decoder, in the order of their ids
  std::vector<AddedToken> extra;

  const std::optional<AddedToken>& operator[](SpecialRole role) const { return named[static_cast<std::size_t>(role)]; }
};

// Nothing if the folder has neither file.
std::optional<SpecialTokensConfig> read_special_tokens(const std::filesystem::path& folder);

}  // namespace tera
