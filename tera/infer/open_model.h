#pragma once
// A trained model to compute with, from either kind of folder: a checkpoint or a Hugging Face folder.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tera/checkpoint/checkpoint.h"
#include "tera/config/setup.h"
#include "tera/hf/hf_files.h"
#include "tera/hf/hf_folder.h"
#include "tera/setup/load.h"
#include "tera/tokenizer/tokenizer.h"
#include "tera/train/launch.h"

namespace tera {

class OpenModel {
 public:
  // A checkpoint, a folder of checkpoints (then the latest), or a Hugging Face folder.
  // `families`: those that its config may name.
  explicit OpenModel(const std::filesystem::path& path, Families families = built_in_families());

  // The caller decides how the model is sharded over ranks ("dist.key=value"), whatever layout it was trained with.
  struct Layout {
    DeviceChoice device = DeviceChoice::automatic;
    std::int64_t threads = 0;
    std::span<const std::string> overrides;
  };
  Setup setup(const Layout& layout, const Launch& launch) const;

  // Loads the shards of a rank. A checkpoint's files are verified while they are read, each by one of the ranks.
  void load(ParamStore& params, Ops& ops, const ModelShape& model, const std::optional<VerifyShard>& verified) const;

  // The files of the Hugging Face folder that the model came from.
  HfFiles carried() const;
  // Whether its tokenizer differs from the one of that folder.
  bool has_custom_tokenizer() const;

  std::unique_ptr<Tokenizer> tokenizer(const Setup& setup) const;
  // The token that begins a text without a prompt (BOS, or end of document); negative where there is none.
  std::int32_t first_token(const Tokenizer& tokenizer) const;
  // Tokens that end a text (EOS): those of generation_config.json or config.json, else the tokenizer's end of document.
  std::vector<std::int32_t> stop_tokens(const Tokenizer& tokenizer) const;

  const HfFolder* hf() const { return hf_.get(); }                    // none: it is a checkpoint
  const Checkpoint* checkpoint() const { return checkpoint_.get(); }  // none: it is a Hugging Face folder

 private:
  LoadedConfig config() const;

  std::unique_ptr<Checkpoint> checkpoint_;
  std::vector<const ModelFamily*> families_;
  std::unique_ptr<HfFolder> hf_;
};

}  // namespace tera
