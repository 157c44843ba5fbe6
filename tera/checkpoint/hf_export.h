#pragma once
// A folder that transformers, and whatever reads its folders, can load. Tensors pass through one after the other, a few
// megabytes at a time. The folder appears whole or not at all.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tera/checkpoint/hf_files.h"
#include "tera/checkpoint/safetensors.h"
#include "tera/checkpoint/weight_source.h"
#include "tera/config/hf_config.h"

namespace tera {

// A tokenizer in the form that transformers reads.
struct HfTokenizerFiles {
  HfTokenIds ids;
  std::map<std::string, std::string> files;  // by name
};

struct HfExportOptions {
  std::optional<DType> dtype;                     // none: each tensor as it is stored
  std::uint64_t max_shard_bytes = 5'000'000'000;  // of a file, unless one tensor alone is larger
  HfFiles carried{};                              // of the folder that the model came from, if it came from one
  std::optional<HfTokenizerFiles> tokenizer{};  // in place of that folder's: of the carried only config.json goes along
  const ModelConfig* written = nullptr;         // as HfConfigOptions has it
};

struct HfExportResult {
  std::size_t files = 0, tensors = 0;
  std::uint64_t bytes = 0;  // of tensors
};

// Layers that predict further ahead are written where the family has a place for them.
bool keeps_layers_ahead(Arch arch);

// Whether a folder of the family has a bias for each expert where the model has none: zeros, which change no choice.
bool adds_expert_bias(const ModelShape& model);

// What export_hf() would refuse the model for, whatever its weights; empty: nothing. A model that a folder describes
// can be what it came as.
std::string why_no_hf_form(const ModelShape& model, const ModelConfig& written);

// UserError if `output` is there and not empty, or if no config.json can say what the model is.
HfExportResult export_hf(const WeightSource& source, const ModelShape& model, const std::filesystem::path& output,
                         const HfExportOptions& options);

// One tensor to a file that has announced it, in the order that files have ([in,out] where it is transposed).
void write_tensor(const WeightSource& source, const ModelTensor& tensor, DType dtype, SafetensorsWriter& writer);
Shape file_shape(const ModelTensor& tensor);

// A folder that is filled beside its place and then put there; without finish() nothing is left. UserError if something
// is there already.
class NewFolder {
 public:
  explicit NewFolder(std::filesystem::path place);
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  ~NewFolder();
  const std::filesystem::path& path() const { return beside_; }  // to write into
  void finish();

 private:
  std::filesystem::path place_, beside_;
};

}  // namespace tera
