#include "tera/train/same_tokenizer.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <span>

#include "tera/base/checksum.h"
#include "tera/base/file.h"
#include "tera/train/stored_run.h"

namespace tera {
namespace {

namespace fs = std::filesystem;

// One of the keys that name a tokenizer's files.
struct FileKey {
  std::string_view name;
  std::string TokenizerConfig::*path;
};

constexpr std::array file_keys{FileKey{"tokenizer_model", &TokenizerConfig::tokenizer_model},
                               FileKey{"vocab_file", &TokenizerConfig::vocab_file},
                               FileKey{"merge_file", &TokenizerConfig::merge_file}};

bool is_equal(const Checkpoint& checkpoint, const std::string& name, const fs::path& file) {
  constexpr std::size_t max_bytes = std::size_t{1} << 30;
  if (file == checkpoint.folder() / name) return true;
  const auto listed = std::ranges::find(checkpoint.manifest().files, name, &ManifestFile::name);
  const std::string content = read_whole_file(file, max_bytes);
  return content.size() == listed->bytes && crc32c(std::as_bytes(std::span(content))) == listed->crc32c;
}

// The name of the checkpoint's copy of the file that was at the path when it was saved; empty: it has none.
std::string carried_name(const Checkpoint& checkpoint, const std::string& path) {
  if (path.empty()) return {};
  for (const std::string& name : {fs::path(path).filename().string(), std::string("tokenizer.json")})
    if (checkpoint.has_file(name)) return name;
  return {};
}

bool tokenizes(const RunConfig& config) {
  return config.dataset.kind == DatasetKind::text || config.dataset.kind == DatasetKind::sft;
}

}  // namespace

std::string other_tokenizer(const Checkpoint& checkpoint, const RunConfig& config) {
  if (checkpoint.manifest().version == 1) return {};
  const RunConfig before = written_config(checkpoint, families_with(config.model.arch)).config;
  for (const FileKey& key : file_keys) {
    const std::string name = carried_name(checkpoint, before.tokenizer.*key.path), given = config.tokenizer.*key.path;
    if (name.empty()) continue;
    const std::string carried = (checkpoint.folder() / name).string();
    if (given.empty() && tokenizes(config) && tokenizes(before))
      return fmt::format("tokenizer.tokenizer_type={} in place of {}", name_of(config.tokenizer.tokenizer_type),
                         carried);
    const bool is_folder = path_exists(fs::path(given) / "tokenizer.json");
    const fs::path file = is_folder ? fs::path(given) / "tokenizer.json" : fs::path(given);
    if (given.empty() || !path_exists(file)) continue;
    if (!is_equal(checkpoint, name, file))
      return fmt::format("tokenizer.{}={} differs from {}", key.name, given, carried);
    if (config.tokenizer.tokenizer_type != TokenizerKind::hugging_face) continue;
    for (const std::string beside : {"tokenizer_config.json", "special_tokens_map.json"})
      if (const fs::path other = file.parent_path() / beside;
          checkpoint.has_file(beside) && path_exists(other) && !is_equal(checkpoint, beside, other))
        return fmt::format("{} (read with tokenizer.{}) differs from {}", other.string(), key.name,
                           (checkpoint.folder() / beside).string());
  }
  return {};
}

}  // namespace tera
