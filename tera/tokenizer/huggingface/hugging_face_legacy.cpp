// Tokenizers whose files are older than tokenizer.json, each put together as transformers does it.

#include <algorithm>
#include <unordered_map>

#include "tera/base/error.h"
#include "tera/base/file.h"
#include "tera/base/utf8.h"
#include "tera/tokenizer/huggingface/hugging_face_parts.h"
#include "tera/tokenizer/huggingface/token_json.h"

namespace tera {
namespace {

using Json = nlohmann::json;

AddedToken special_token(std::string content) {
  return {.content = std::move(content), .normalized = false, .special = true};
}

std::optional<AddedToken>& named(SpecialTokensConfig& config, SpecialRole role) {
  return config.named[static_cast<std::size_t>(role)];
}

std::unique_ptr<HuggingFaceTokenizer> finish(TokenizerParts parts, const SpecialTokensConfig& config,
                                             bool include_special_tokens) {
  name_special_ids(parts, config);
  if (!include_special_tokens) parts.post_processor = {};
  return std::make_unique<HuggingFaceTokenizer>(std::move(parts));
}

// One token a line; its id is the number of the line, from 0.
void read_vocab_text(const std::filesystem::path& path, TokenizerFile& file) {
  const std::string text = read_whole_file(path, max_tokenizer_bytes);
  require_user(valid_utf8_prefix(text) == text.size(), "{}: byte {} is no UTF-8", path.string(),
               valid_utf8_prefix(text));
  std::unordered_map<std::string_view, std::size_t> ids;
  std::string_view rest = text;
  while (!rest.empty()) {
    require_user(std::ssize(file.tokens) < max_token_ids, "{}: more than {} lines", path.string(), max_token_ids);
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view token = rest.substr(0, end);
    if (token.ends_with('\r')) token.remove_suffix(1);
    // Where two lines have the same token, the later one counts.
    const auto [entry, added] = ids.try_emplace(token, file.tokens.size());
    if (!added) {
      file.tokens[entry->second].clear();
      entry->second = file.tokens.size();
    }
    file.tokens.emplace_back(token);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  file.vocab_count = ids.size();
}

Json bert_parts(bool lower_case) {
  return {{"normalizer",
           {{"type", "BertNormalizer"},
            {"clean_text", true},
            {"handle_chinese_chars", true},
            {"strip_accents", nullptr},
            {"lowercase", lower_case}}},
          {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
          {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}},
          {"model",
           {{"type", "WordPiece"},
            {"unk_token", "[UNK]"},
            {"continuing_subword_prefix", "##"},
            {"max_input_chars_per_word", 100}}}};
}

Json gpt2_parts() {
  const Json byte_level{
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  return {{"pre_tokenizer", byte_level}, {"decoder", byte_level}, {"model", {{"type", "BPE"}}}};
}

}  // namespace

std::unique_ptr<HuggingFaceTokenizer> HuggingFaceTokenizer::load_gpt2(const std::filesystem::path& vocab,
                                                                      const std::filesystem::path& merges,
                                                                      bool include_special_tokens) {
  TokenizerFile file{.name = vocab.string(), .parts = gpt2_parts(), .tokens = read_vocab_json(vocab)};
  file.merges = read_merges_text(merges, TokenIndex(file.tokens));
  file.vocab_count = file.tokens.size() - static_cast<std::size_t>(std::ranges::count(file.tokens, std::string()));
  TokenizerParts parts = assemble_tokenizer(std::move(file));
  SpecialTokensConfig config;
  for (const SpecialRole role : {SpecialRole::bos, SpecialRole::eos, SpecialRole::unk})
    named(config, role) = special_token("<|endoftext|>");
  apply_config(parts, config);
  return finish(std::move(parts), config, include_special_tokens);
}

std::unique_ptr<HuggingFaceTokenizer> HuggingFaceTokenizer::load_bert(const std::filesystem::path& vocab,
                                                                      bool lower_case, bool include_special_tokens) {
  TokenizerFile file{.name = vocab.string(), .parts = bert_parts(lower_case), .tokens = {}};
  read_vocab_text(vocab, file);
  SpecialTokensConfig config;
  named(config, SpecialRole::unk) = special_token("[UNK]");
  named(config, SpecialRole::sep) = special_token("[SEP]");
  named(config, SpecialRole::pad) = special_token("[PAD]");
  named(config, SpecialRole::cls) = special_token("[CLS]");
  named(config, SpecialRole::mask) = special_token("[MASK]");
  for (const auto& token : config.named)
    if (token)
      require_user(std::ranges::find(file.tokens, token->content) != file.tokens.end(),
                   "{}: {} is not in this vocabulary; is it BERT's vocab.txt?", vocab.string(), token->content);
  TokenizerParts parts = assemble_tokenizer(std::move(file));
  apply_config(parts, config);
  parts.post_processor = {.before = {id_of_token(parts, "[CLS]")}, .after = {id_of_token(parts, "[SEP]")}};
  return finish(std::move(parts), config, include_special_tokens);
}

}  // namespace tera
