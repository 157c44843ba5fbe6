#include "tera/hf/config/hf_tokenizer.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "tera/base/file.h"
#include "tera/config/family.h"
#include "tera/hf/config/hf_json.h"

namespace tera {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t max_tokenizer_config_bytes = std::size_t{16} << 20;
constexpr auto end_of_text = "<|endoftext|>";

// Whether a tokenizer_config.json keeps the behaviour of GPT-2's tokenizer.
bool is_plain_gpt2(const HfJson& config) {
  constexpr std::array without_effect{"model_max_length", "name_or_path", "special_tokens_map_file",
                                      "clean_up_tokenization_spaces", "errors"};
  const auto is_plain = [&](const std::string& key, const HfJson& value) {
    if (std::ranges::find(without_effect, key) != without_effect.end() || value.is_null()) return true;
    if (key == "tokenizer_class") return value == "GPT2Tokenizer" || value == "GPT2TokenizerFast";
    if (key == "bos_token" || key == "eos_token" || key == "unk_token") return value == end_of_text;
    return (key == "add_prefix_space" || key == "add_bos_token") && value == false;
  };
  return std::ranges::all_of(config.items(), [&](const auto& entry) { return is_plain(entry.key(), entry.value()); });
}

bool has_plain_gpt2(const fs::path& folder) {
  for (const char* name : {"vocab.json", "merges.txt"})
    if (!path_exists(folder / name)) return false;
  if (path_exists(folder / "added_tokens.json")) return false;
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const fs::path file = folder / name;
    if (path_exists(file) &&
        !is_plain_gpt2(parse_hf_json(read_whole_file(file, max_tokenizer_config_bytes), file.string())))
      return false;
  }
  return true;
}

// Whether the tokenizer file is in the folder, or in a checkpoint that copied it.
bool is_in_folder(const std::string& path, const fs::path& folder) {
  const auto plain = [](const fs::path& each) {
    const fs::path normal = each.lexically_normal();
    return normal.has_filename() ? normal : normal.parent_path();
  };
  const auto is_step = [](const fs::path& each) { return each.filename().string().starts_with("step_"); };
  const fs::path file = plain(path), parent = file.parent_path();
  return file == plain(folder) || parent == plain(folder) || is_step(file) || is_step(parent);
}

}  // namespace

std::optional<TokenizerConfig> find_hf_tokenizer(const fs::path& folder, const ModelFamily& family) {
  TokenizerConfig tokenizer;
  if (path_exists(folder / "tokenizer.json")) {
    tokenizer.tokenizer_type = TokenizerKind::hugging_face;
    tokenizer.tokenizer_model = folder.string();
    return tokenizer;
  }
  if (!family.gpt2_tokenizer || !has_plain_gpt2(folder)) return std::nullopt;
  tokenizer.tokenizer_type = TokenizerKind::gpt2_bpe;
  tokenizer.vocab_file = (folder / "vocab.json").string();
  tokenizer.merge_file = (folder / "merges.txt").string();
  return tokenizer;
}

std::string why_no_hf_tokenizer(const fs::path& folder) {
  std::string text = fmt::format("{} has no tokenizer.json; ", folder.string());
  if (path_exists(folder / "tokenizer.model"))
    text += fmt::format(
        "with its tokenizer.model: tokenizer.tokenizer_type=SentencePieceTokenizer tokenizer.tokenizer_model={} (no "
        "beginning of a text is added, unlike in transformers); ",
        (folder / "tokenizer.model").string());
  return text +
         "name one with tokenizer.tokenizer_type and tokenizer.tokenizer_model, or load it in transformers with "
         "AutoTokenizer and save it there with save_pretrained";
}

bool uses_custom_tokenizer(const RunConfig& config) {
  const TokenizerConfig& tokenizer = config.tokenizer;
  if (config.model.hf.empty()) return true;
  // Mock data need no tokenizer; the byte tokenizer is then only the default.
  if (tokenizer.tokenizer_type == TokenizerKind::byte) return config.dataset.kind != DatasetKind::mock;
  const std::array files{&tokenizer.tokenizer_model, &tokenizer.vocab_file, &tokenizer.merge_file};
  const bool from_folder = std::ranges::all_of(
      files, [&](const std::string* file) { return file->empty() || is_in_folder(*file, config.model.hf); });
  return tokenizer.tokenizer_type == TokenizerKind::null || !from_folder;
}

}  // namespace tera
