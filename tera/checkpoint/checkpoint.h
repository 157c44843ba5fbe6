#pragma once
// Checkpoints on disk, in a first form: the weights, whole, and the config they were trained with.
//
//   DIR/latest                        names the newest complete one
//   DIR/step_00000100/manifest.json   step, config, every tensor with dtype, shape and the file it is in
//   DIR/step_00000100/model.safetensors
//
// A checkpoint is written beside, synced, then published by one rename. Tensors have their Hugging Face names and
// layouts.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tera {

class Ops;
class ParamStore;
class SafetensorsFile;
struct Part;

struct CheckpointSource {
  std::int64_t step = 0;
  std::string config_yaml;  // as `tera train` would take it
};

// Returns the folder that was published.
std::filesystem::path save_checkpoint(const std::filesystem::path& root, const CheckpointSource& source,
                                      ParamStore& params, Ops& ops);

class Checkpoint {
 public:
  // `path` is a step's folder, or a folder of checkpoints: then the latest is taken.
  explicit Checkpoint(const std::filesystem::path& path);

  const std::filesystem::path& folder() const { return folder_; }
  std::int64_t step() const { return source_.step; }
  const std::string& config_yaml() const { return source_.config_yaml; }

  // Every parameter must be there, with its shape, and nothing else.
  void load_weights(ParamStore& params, Ops& ops) const;

 private:
  std::filesystem::path folder_;
  CheckpointSource source_;
};

// Every parameter from a file that has them under their outside names; other tensors in it are ignored.
void load_weights(const SafetensorsFile& file, ParamStore& params, Ops& ops);

// A tensor as files hold it, turned into the [out,in] order of the parameter.
std::vector<float> to_model_layout(std::vector<float> values, const Part& part);

}  // namespace tera
