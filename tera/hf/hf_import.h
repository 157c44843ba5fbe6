#pragma once
// Converts a Hugging Face folder to a checkpoint of ours, tensor by tensor, in the stored dtype. The folder's
// config.json, tokenizer and generation files are stored too, as in checkpoints of a run that began from such a folder,
// and are written again by an export.

#include <filesystem>
#include <string>

#include "tera/config/setup.h"
#include "tera/hf/hf_folder.h"

namespace tera {

// `root` is a folder of checkpoints that does not exist yet, or is empty; the new checkpoint is its step 0.
// config_yaml: a config that `tera train` accepts. Returns the checkpoint's folder.
std::filesystem::path import_hf(const HfFolder& source, const ModelShape& model, const std::string& config_yaml,
                                const std::filesystem::path& root);

}  // namespace tera
