#pragma once
// A checkpoint of ours from a Hugging Face folder, tensor by tensor, in the stored dtype. The folder's config.json,
// tokenizer and generation files go along, as they do with the checkpoints of a run that began from such a folder, and
// come out again at an export.

#include <filesystem>
#include <string>

#include "tera/checkpoint/hf_folder.h"
#include "tera/config/setup.h"

namespace tera {

// `root` is a folder of checkpoints that is not there yet, or empty; the new one is its step 0. config_yaml: as `tera
// train` would take it. Returns the checkpoint's folder.
std::filesystem::path import_hf(const HfFolder& source, const ModelShape& model, const std::string& config_yaml,
                                const std::filesystem::path& root);

}  // namespace tera
