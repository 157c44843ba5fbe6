#pragma once
// A model family: all that sets one architecture apart from the others, as a value. A family is one file in
// tera/models/families and one line in tera/models/registry.cpp; programs that link the library may hand families of
// their own to load_config(). Nothing else in the program asks which family a model is of.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tera {

class HfFields;
struct FamilyNames;
struct ModelConfig;
struct ModelShape;
struct ModelSpec;

struct ModelFamily {
  std::string_view name;      // model.arch
  std::string_view hf_type;   // config.json: model_type
  std::string_view hf_class;  // config.json: architectures
  std::string_view hf_since;  // a version of transformers that has the model

  // Values of the model section where the user gives none. It starts from those of ModelConfig.
  void (*defaults)(ModelConfig& model);
  // config.json to the model section, which has the family's defaults, and back. Keys that all families share are read
  // and written by the caller (tera/hf/config/hf_config.h). UserError for what the model cannot be or the file not say.
  void (*read_hf)(const HfFields& config, ModelConfig& model);
  void (*write_hf)(const ModelConfig& model, nlohmann::ordered_json& config);
  // The last change of a config.json, newly written or that of the model's folder: keys for older readers. Optional.
  void (*finish_hf)(const ModelConfig& model, nlohmann::ordered_json& config) = nullptr;
  // The key of config.json for one of the model section ("hidden_size"), for messages. Optional: Llama's names.
  std::string_view (*hf_key)(std::string_view key) = nullptr;
  // Brings a section to the form that reading its config.json would give, where several mean the same. Optional.
  void (*to_hf_form)(ModelConfig& model) = nullptr;

  FamilyNames (*names)();  // tensors in files
  ModelSpec (*make_spec)(const ModelShape& model, std::uint64_t dropout_seed);

  bool has_experts = false;        // published models are mixtures of experts; others may not be
  bool needs_expert_bias = false;  // files with sigmoid scores have a bias for each expert
  bool has_mla = false;            // multi-head latent attention; a config.json cannot say otherwise
  bool may_have_mla = true;
  bool gpt2_tokenizer = false;  // folders may have GPT-2's vocab.json and merges.txt in place of a tokenizer.json
  // Layers behind the last one in files, which are of MTP: no tensors of the model, left out when they are read, or
  // read and written.
  enum class MtpInFiles : std::uint8_t { refused, left_out, kept } mtp_in_files = MtpInFiles::refused;
};

// Families are known by address. They live as long as the program.
using Families = std::span<const ModelFamily* const>;

const ModelFamily* find_family(std::string_view name, Families families);  // null: there is none
// The family of a published model_type; null: there is none.
const ModelFamily* find_hf_family(std::string_view hf_type, Families families);
// "a, b or c", for messages.
std::string list_families(Families families);
std::string list_families_with_experts(Families families);
std::string list_hf_types(Families families);

// The family of a resolved model; Error where a shape was filled in by hand and names none.
const ModelFamily& family_of(const ModelShape& model);

// All families of this library, by name (tera/models/registry.cpp).
Families built_in_families();
// One of them; Error if there is none.
const ModelFamily& family_named(std::string_view name);
// The built-in families and this one, for files that a model of it has written; null: the built-in ones.
std::vector<const ModelFamily*> families_with(const ModelFamily* family);

}  // namespace tera
