#pragma once
// Exports a folder that transformers, and other programs with its format, can load. Tensors are streamed one after the
// other, a few megabytes at a time. The folder appears complete or not at all.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tera/checkpoint/safetensors.h"
#include "tera/checkpoint/weight_source.h"
#include "tera/hf/config/hf_config.h"
#include "tera/hf/hf_files.h"

namespace tera {

// A tokenizer in the form that transformers reads.
struct HfTokenizerFiles {
  HfTokenIds ids;
  std::map<std::string, std::string> files;  // content by file name
};

struct HfExportOptions {
  std::optional<DType> dtype;                     // none: each tensor keeps its stored dtype
  std::uint64_t max_shard_bytes = 5'000'000'000;  // unless one tensor alone is larger
  HfFiles carried{};                              // files of the folder that the model came from, if any
  std::optional<HfTokenizerFiles> tokenizer{};    // replaces the carried files, except config.json
  const ModelConfig* written = nullptr;           // as in HfConfigOptions
};

struct HfExportResult {
  std::size_t files = 0, tensors = 0;
  std::uint64_t bytes = 0;  // bytes of all tensors
};

// Whether the family's format has MTP layers; they are exported only then.
bool keeps_mtp_layers(const ModelFamily& family);

// Whether the format needs expert biases that the model lacks: zeros, which change no routing decision.
bool adds_expert_bias(const ModelShape& model);

// Why export_hf() would refuse the model, whatever its weights; empty if it would not. A model that came from a folder
// can always be exported.
std::string why_no_hf_form(const ModelShape& model, const ModelConfig& written);

// UserError if `output` is there and not empty, or if no config.json can say what the model is.
HfExportResult export_hf(const WeightSource& source, const ModelShape& model, const std::filesystem::path& output,
                         const HfExportOptions& options);

// Writes one tensor that the writer was made for, in the order of files ([in,out] if it is transposed).
void write_tensor(const WeightSource& source, const ModelTensor& tensor, DType dtype, SafetensorsWriter& writer);
Shape file_shape(const ModelTensor& tensor);

// A folder that is written to a temporary name next to `output` and renamed by finish(); without finish() it is
// removed. UserError if `output` exists and is not an empty folder.
class NewFolder {
 public:
  explicit NewFolder(std::filesystem::path output);
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  ~NewFolder();
  const std::filesystem::path& path() const { return staging_; }  // to write into
  void finish();

 private:
  std::filesystem::path output_, staging_;
};

}  // namespace tera
