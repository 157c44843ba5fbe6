#pragma once
// Checkpoints on disk, in a first form: the weights, whole, and the config they were trained with.
//
//   DIR/latest                        names the newest complete one
//   DIR/step_00000100/manifest.json   step, config, every tensor with dtype, shape and the file it is in
//   DIR/step_00000100/model.safetensors
//   DIR/step_00000100/tokenizer.json  and the like: the tokenizer's files, as they were
//
// A checkpoint is written beside (step_00000100.writing), synced, then published by one rename; one that it replaces is
// moved aside (step_00000100.old) and removed only then, so that a complete one exists at every moment. Tensors have
// their Hugging Face names and layouts. What is read is not trusted: sizes must be the manifest's, links are refused.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "tera/checkpoint/manifest.h"

namespace tera {

class GatherWeights;
class Ops;
class ParamStore;
class SafetensorsFile;
struct ModelShape;
struct ModelTensor;
struct Part;

// All ranks call it; the first writes. The files do not depend on how the model is cut over ranks. Returns the folder
// that was published. If all was written but cannot be published, it is kept, and the UserError says where.
std::filesystem::path save_checkpoint(const std::filesystem::path& root, const CheckpointSource& source,
                                      GatherWeights& weights);
// Of a store that holds the whole model.
std::filesystem::path save_checkpoint(const std::filesystem::path& root, const CheckpointSource& source,
                                      const ParamStore& params, Ops& ops);

class Checkpoint {
 public:
  // `path` is a step's folder, or a folder of checkpoints: then the latest is taken.
  explicit Checkpoint(const std::filesystem::path& path);

  const std::filesystem::path& folder() const { return folder_; }
  std::int64_t step() const { return manifest_.source.step; }
  const std::string& config_yaml() const { return manifest_.source.config_yaml; }
  bool has_file(const std::string& name) const { return manifest_.files.contains(name); }

  // Every parameter must be there, with its shape, and nothing else.
  void load_weights(ParamStore& params, Ops& ops) const;
  // Into what one rank holds of a model; there must be nothing that is not the model's.
  void load_weights(ParamStore& params, Ops& ops, const ModelShape& model) const;

 private:
  void load_listed(ParamStore& params, Ops& ops, std::span<const ModelTensor> model) const;

  std::filesystem::path folder_;
  Manifest manifest_;
};

// Every parameter from a file that has them under their outside names; other tensors in it are ignored.
void load_weights(const SafetensorsFile& file, ParamStore& params, Ops& ops);

// A tensor as files hold it, turned into the [out,in] order of the parameter.
std::vector<float> to_model_layout(std::vector<float> values, const Part& part);

}  // namespace tera
