#pragma once
// A model to compute with, from either kind of folder: a checkpoint, or one of Hugging Face.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tera/checkpoint/checkpoint.h"
#include "tera/checkpoint/hf_files.h"
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

  // What a rank holds of it. A checkpoint's files are verified in the same reading, each by one of the ranks.
  void load(ParamStore& params, Ops& ops, const ModelShape& model, const std::optional<VerifyShare>& verified) const;

  // The files that came with it from a Hugging Face folder.
  HfFiles carried() const;
  // Whether its tokenizer is another than the one among those files.
  bool has_tokenizer_of_its_own() const;

  std::unique_ptr<Tokenizer> tokenizer(const Setup& setup) const;
  // A token to begin a text with that has no words yet; negative where there is none.
  std::int32_t first_token(const Tokenizer& tokenizer) const;
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
