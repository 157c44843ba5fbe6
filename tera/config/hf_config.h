#pragma once
// config.json of a Hugging Face folder, both ways: as the model section of a run, and written for a model of ours.
// Keys of transformers 4 and of 5 are read. Keys that we do not know are carried along; those that change what is
// computed and are not supported are refused by name.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "tera/config/model.h"

namespace tera {

struct ModelShape;

// The text of the folder's config.json, which may be a link.
std::string read_hf_config(const std::filesystem::path& folder);

// The model that the text describes, with every size filled in; `where` names it in messages.
ModelConfig parse_hf_config(std::string_view text, const std::string& where);

// Whether the file decides a key of the model section ("hidden_size"), or only gives its default, which a run may
// change: what belongs to training and to the layout.
bool hf_decides(std::string_view key);

// Negative: there is none.
struct HfTokenIds {
  std::int32_t bos = -1, eos = -1, pad = -1;
};

struct HfConfigOptions {
  std::string_view source;               // the config.json that the model came from: its keys are kept; empty: none
  std::string_view dtype;                // "bfloat16"; empty: several, or not known
  std::optional<HfTokenIds> tokens{};    // of a tokenizer that is not the source's, whose ids then go
  const ModelConfig* written = nullptr;  // what the user wrote, whose keys messages name where several say one thing
};

// The keys of transformers 4 are there in any case, those of 5 beside them; floats have a point or an exponent, which 5
// insists on. UserError naming the key if no config.json can say what the model is, or if transformers would refuse it.
std::string format_hf_config(const ModelShape& model, const HfConfigOptions& options);

}  // namespace tera
