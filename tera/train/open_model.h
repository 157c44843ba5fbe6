#pragma once
// A model to compute with, from either kind of folder: a checkpoint, or one of Hugging Face.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tera/checkpoint/checkpoint.h"
#include "tera/checkpoint/hf_folder.h"
#include "tera/config/load.h"
#include "tera/config/setup.h"
#include "tera/tokenizer/tokenizer.h"
#include "tera/train/launch.h"

namespace tera {

class OpenModel {
 public:
  // A checkpoint, a folder of checkpoints (then the latest), or a Hugging Face folder.
  explicit OpenModel(const std::filesystem::path& path);

  // How it is cut over ranks is the caller's to say ("dist.key=value"), whatever it was trained with.
  struct Layout {
    DeviceChoice device = DeviceChoice::automatic;
    std::int64_t threads = 0;
    std::span<const std::string> overrides;
  };
  Setup setup(const Layout& layout, const Launch& launch) const;

  // What a rank holds of it.
  void load(ParamStore& params, Ops& ops, const ModelShape& model) const;

  std::unique_ptr<Tokenizer> tokenizer(const Setup& setup) const;
  // Tokens that end a text: what generation_config.json or config.json says, else the tokenizer's end of a document.
  std::vector<std::int32_t> stop_tokens(const Tokenizer& tokenizer) const;

  const HfFolder* hf() const { return hf_.get(); }                    // none: it is a checkpoint
  const Checkpoint* checkpoint() const { return checkpoint_.get(); }  // none: it is a Hugging Face folder

 private:
  LoadedConfig config() const;

  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<HfFolder> hf_;
};

}  // namespace tera
