#include "tera/train/stored_run.h"

#include "tera/base/error.h"
#include "tera/hf/config/hf_tokenizer.h"
#include "tera/hf/hf_files.h"
#include "tera/tokenizer/make_tokenizer.h"

namespace tera {
namespace {

// Files beside a tokenizer.json are read with it, so they must be listed by the checkpoint, too.
void check_listed(const Checkpoint& checkpoint, const TokenizerConfig& tokenizer) {
  for (const std::filesystem::path& file : tokenizer_files(tokenizer.options())) {
    const bool is_inside = file == checkpoint.folder() / file.filename();
    require_user(!is_inside || checkpoint.has_file(file.filename().string()),
                 "{}: not a file of this checkpoint: its manifest does not list it", file.string());
  }
}

}  // namespace

LoadedConfig written_config(const Checkpoint& checkpoint, Families families) {
  return load_config_text(checkpoint.config_yaml(), (checkpoint.folder() / "manifest.json").string(), families);
}

LoadedConfig stored_config(const Checkpoint& checkpoint, Families families) {
  LoadedConfig stored = written_config(checkpoint, families);
  TokenizerConfig& tokenizer = stored.config.tokenizer;
  for (std::string* path : {&tokenizer.tokenizer_model, &tokenizer.vocab_file, &tokenizer.merge_file}) {
    const std::string name = std::filesystem::path(*path).filename().string();
    if (!path->empty() && checkpoint.has_file(name))
      *path = (checkpoint.folder() / name).string();
    else if (!path->empty() && checkpoint.has_file("tokenizer.json"))
      *path = checkpoint.folder().string();  // the path was a folder
  }
  check_listed(checkpoint, tokenizer);
  return stored;
}

StoredRun find_stored_run(const std::string& folder, Families families) {
  const Checkpoint checkpoint(folder);
  StoredRun stored{.where = checkpoint.folder().string(),
                   .config = stored_config(checkpoint, families).config,
                   .custom_tokenizer = uses_custom_tokenizer(written_config(checkpoint, families).config),
                   .hf_config = {}};
  const HfFiles files(checkpoint);
  if (files.has("config.json")) stored.hf_config = files.read("config.json");
  return stored;
}

}  // namespace tera
