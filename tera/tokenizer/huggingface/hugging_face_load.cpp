// Loads a tokenizer.json with the files beside it.

#include <algorithm>
#include <array>

#include "tera/base/error.h"
#include "tera/base/file.h"
#include "tera/tokenizer/huggingface/hugging_face_parts.h"

namespace tera {
namespace {

namespace fs = std::filesystem;

// A tokenizer.json alone does not say which token ends a document; these names mean nothing else.
constexpr std::array<std::string_view, 6> known_ends{"<|endoftext|>", "<|end_of_text|>", "</s>",
                                                     "<eos>",         "<|im_end|>",      "[SEP]"};

void guess_special_ids(TokenizerParts& parts) {
  for (const std::string_view name : known_ends) {
    const auto token = std::ranges::find(parts.added, name, &AddedToken::content);
    if (token == parts.added.end() || !token->special) continue;
    parts.eod = token->id;
    return;
  }
}

fs::path file_in(const fs::path& path) { return fs::is_directory(path) ? path / "tokenizer.json" : path; }

}  // namespace

std::unique_ptr<HuggingFaceTokenizer> HuggingFaceTokenizer::load(const fs::path& path, bool include_special_tokens) {
  const fs::path file = file_in(path);
  require_user(path_exists(file), "{}: there is no {}", path.string(),
               fs::is_directory(path) ? "tokenizer.json in this folder" : "such file");
  TokenizerParts parts = assemble_tokenizer(read_tokenizer_file(file));
  const auto config = read_special_tokens(file.parent_path());
  if (config) {
    if (fs::is_directory(path)) apply_config(parts, *config);
    name_special_ids(parts, *config);
  } else {
    guess_special_ids(parts);
  }
  if (!include_special_tokens) parts.post_processor = {};
  try {
    return std::make_unique<HuggingFaceTokenizer>(std::move(parts));
  } catch (const UserError& error) {
    fail_user("{}: {}", file.string(), error.what());
  }
}

std::vector<fs::path> hugging_face_files(const fs::path& path) {
  const fs::path file = file_in(path);
  std::vector<fs::path> files{file};
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"})
    if (const fs::path beside = file.parent_path() / name; path_exists(beside)) files.push_back(beside);
  return files;
}

}  // namespace tera
