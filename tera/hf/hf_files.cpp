#include "tera/hf/hf_files.h"

#include <algorithm>
#include <array>
#include <string>

#include "tera/base/error.h"
#include "tera/base/file.h"
#include "tera/hf/config/hf_json.h"

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
                                   "tekken.json",
                                   "config.json"};

// Reads a token id, or a list of them.
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

// Token ids under the key, from the first file that has any.
std::vector<std::int32_t> find_ids(const HfFiles& files, const char* key) {
  for (const char* name : {"generation_config.json", "config.json"}) {
    if (!files.has(name)) continue;
    const std::string where = files.path(name).string();
    const HfJson json = parse_hf_json(files.read(name), where);
    std::vector<std::int32_t> ids = read_ids(HfFields(json, where + ": ").find(key));
    if (!ids.empty()) return ids;
  }
  return {};
}

}  // namespace

HfFiles::HfFiles(fs::path folder) : folder_(std::move(folder)) {
  for (const char* name : carried_names)
    if (path_exists(folder_ / name)) names_.emplace_back(name);
}

HfFiles::HfFiles(const Checkpoint& checkpoint) : folder_(checkpoint.folder()) {
  for (const char* name : carried_names)
    if (checkpoint.has_file(name)) names_.emplace_back(name);
}

bool HfFiles::has(std::string_view name) const { return std::ranges::find(names_, name) != names_.end(); }

std::string HfFiles::read(std::string_view name) const { return read_whole_file(path(name), max_file_bytes); }

std::vector<std::int32_t> hf_stop_tokens(const HfFiles& files) { return find_ids(files, "eos_token_id"); }

std::int32_t hf_first_token(const HfFiles& files) {
  const std::vector<std::int32_t> ids = find_ids(files, "bos_token_id");
  return ids.empty() ? -1 : ids.front();
}

}  // namespace tera
