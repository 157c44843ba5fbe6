#pragma once
// Reads config.json of a Hugging Face folder as the model section of a run, and writes it for a model of ours. Keys of
// transformers 4 and 5 are read. Unknown keys are carried along; unsupported keys that change what is computed are
// refused by name.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "tera/config/family.h"
#include "tera/config/sections/model.h"

namespace tera {

struct ModelShape;

// Reads the text of the folder's config.json, which may be a link.
std::string read_hf_config(const std::filesystem::path& folder);

// The model that the text describes, with every size filled in; `where` names it in messages.
ModelConfig parse_hf_config(std::string_view text, const std::string& where, Families families = built_in_families());

// Special token ids; negative: there is none.
struct HfTokenIds {
  std::int32_t bos = -1, eos = -1, pad = -1;
};

struct HfConfigOptions {
  std::string_view source;               // the model's original config.json, whose keys are kept; empty: none
  std::string_view dtype;                // "bfloat16"; empty: several, or not known
  std::optional<HfTokenIds> tokens{};    // ids of another tokenizer; they replace those of the source
  const ModelConfig* written = nullptr;  // the user's section, for the keys in messages
};

// The keys of transformers 4 are always written, those of 5 in addition; floats have a point or an exponent, which 5
// requires. UserError naming the key if no config.json can say what the model is, or if transformers would refuse it.
std::string format_hf_config(const ModelShape& model, const HfConfigOptions& options);

}  // namespace tera
