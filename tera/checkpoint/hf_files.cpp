#include "tera/checkpoint/hf_files.h"

#include <algorithm>
#include <array>
#include <string>

#include "tera/base/error.h"
#include "tera/base/file.h"
#include "tera/config/hf_json.h"

namespace tera {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t max_file_bytes = std::size_t{256} << 20;
constexpr std::array carried_names{"generation_config.json",
                                   "tokenizer.json",
                                   "tokenizer_config.json",
                                   "chat_template.jinja",
                                   "chat_template.json",
                                   "special_tokens_map.json",
                                   "added_tokens.json",
                                   "vocab.json",
                                   "vocab.txt",
                                   "merges.txt",
                                   "tokenizer.model",
                                   "spiece.model",
                                   "sentencepiece.bpe.model",
                                   "tekken.json"};

// A number, or a list of numbers.
std::vector<std::int32_t> read_ids(const HfJson* value) {
  std::vector<std::int32_t> ids;
  const auto add = [&](const HfJson& id) {
    if (id.is_number_integer() && id.get<std::int64_t>() >= 0 && id.get<std::int64_t>() <= 0x7fffffff)
      ids.push_back(id.get<std::int32_t>());
  };
  if (value != nullptr && value->is_array()) std::ranges::for_each(*value, add);
  if (value != nullptr && !value->is_array()) add(*value);
  return ids;
}

}  // namespace

std::vector<fs::path> hf_carried_files(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const char* name : carried_names)
    if (path_exists(folder / name)) files.push_back(folder / name);
  return files;
}

void copy_hf_files(const fs::path& from, const fs::path& to, bool with_config) {
  std::vector<fs::path> files = hf_carried_files(from);
  if (with_config) files.push_back(from / "config.json");
  for (const fs::path& file : files) write_file_atomically(to / file.filename(), read_whole_file(file, max_file_bytes));
}

std::vector<std::int32_t> hf_stop_tokens(const fs::path& folder) {
  for (const char* name : {"generation_config.json", "config.json"}) {
    const fs::path file = folder / name;
    if (!path_exists(file)) continue;
    const HfJson json = parse_hf_json(read_whole_file(file, max_file_bytes), file.string());
    const std::vector<std::int32_t> ids = read_ids(HfFields(json, file.string() + ": ").find("eos_token_id"));
    if (!ids.empty()) return ids;
  }
  return {};
}

}  // namespace tera
