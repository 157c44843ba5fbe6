#pragma once
// manifest.json of a checkpoint: the step, the config, every tensor with dtype, shape and the file it is in, and the
// size of every file. Names in it are data from outside: a file is one inside the folder, never a path.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tera {

struct CheckpointSource {
  std::int64_t step = 0;
  std::string config_yaml;                     // as `tera train` would take it
  std::vector<std::filesystem::path> carried;  // files to copy along under their names: the tokenizer's
};

struct ManifestTensor {
  std::string dtype;                // as name_of() has it
  std::vector<std::int64_t> shape;  // as in the file
  std::string file;                 // one of Manifest::files; the format allows pieces, today one holds the whole
};

struct Manifest {
  CheckpointSource source;
  std::map<std::string, ManifestTensor> tensors;
  std::map<std::string, std::uint64_t> files;  // bytes of each
};

// UserError if the config is not UTF-8.
std::string format_manifest(const Manifest& manifest);

// `where` is for messages.
Manifest parse_manifest(std::string_view text, const std::string& where);

}  // namespace tera
