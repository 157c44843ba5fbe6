#include "tera/tokenizer/make_tokenizer.h"

#include "tera/base/error.h"
#include "tera/tokenizer/bpe/tiktoken.h"
#include "tera/tokenizer/huggingface/hugging_face.h"
#include "tera/tokenizer/plain_tokenizers.h"
#include "tera/tokenizer/sentencepiece/sentence_piece.h"

namespace tera {
namespace {

namespace fs = std::filesystem;

const std::string& needed(const TokenizerOptions& options, const std::string& value, std::string_view what) {
  require_user(!value.empty(), "{} needs {}", name_of(options.type), what);
  return value;
}

const std::string& model_of(const TokenizerOptions& options, std::string_view what) {
  require_user(!options.model.empty(), "{} needs {} as its tokenizer_model", name_of(options.type), what);
  return options.model;
}

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerOptions& options) {
  const bool special = options.include_special_tokens;
  switch (options.type) {
    case TokenizerKind::byte: return std::make_unique<ByteTokenizer>();
    case TokenizerKind::null:
      require_user(options.vocab_size > 0, "NullTokenizer needs a vocab_size of at least 1");
      return std::make_unique<NullTokenizer>(options.vocab_size);
    case TokenizerKind::hugging_face:
      return HuggingFaceTokenizer::load(model_of(options, "a tokenizer.json or its folder"), special);
    case TokenizerKind::gpt2_bpe:
      return HuggingFaceTokenizer::load_gpt2(needed(options, options.vocab_file, "a vocab_file (vocab.json)"),
                                             needed(options, options.merge_file, "a merge_file (merges.txt)"), special);
    case TokenizerKind::bert_lower_case:
    case TokenizerKind::bert_case:
      return HuggingFaceTokenizer::load_bert(needed(options, options.vocab_file, "a vocab_file (vocab.txt)"),
                                             options.type == TokenizerKind::bert_lower_case, special);
    case TokenizerKind::tik:
      return make_tiktoken({.model = model_of(options, "a JSON list of tokens or a .tiktoken file"),
                            .pattern = options.tiktoken_pattern,
                            .num_special_tokens = options.tiktoken_num_special_tokens,
                            .vocab_size = options.vocab_size,
                            .special_tokens = options.special_tokens});
    case TokenizerKind::sentence_piece:
    case TokenizerKind::gpt_sentence_piece:
    case TokenizerKind::llama2: return std::make_unique<SentencePieceTokenizer>(model_of(options, "a .model file"));
  }
  fail("a kind of tokenizer that does not exist");
}

std::vector<fs::path> tokenizer_files(const TokenizerOptions& options) {
  if (options.type == TokenizerKind::hugging_face) return hugging_face_files(options.model);
  std::vector<fs::path> files;
  for (const std::string& file : {options.model, options.vocab_file, options.merge_file})
    if (!file.empty()) files.emplace_back(file);
  return files;
}

}  // namespace tera
