#pragma once
// The options of a tokenizer, from the command line or the `tokenizer` section of a config.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tera/base/enum_names.h"

namespace tera {

enum class TokenizerKind : std::uint8_t {
  byte,
  null,
  hugging_face,
  gpt2_bpe,
  sentence_piece,
  gpt_sentence_piece,
  llama2,
  tik,
  bert_lower_case,
  bert_case
};

template <>
struct EnumNames<TokenizerKind> {
  static constexpr std::array values{
      std::pair{TokenizerKind::byte, std::string_view("ByteTokenizer")},
      std::pair{TokenizerKind::null, std::string_view("NullTokenizer")},
      std::pair{TokenizerKind::hugging_face, std::string_view("HuggingFaceTokenizer")},
      std::pair{TokenizerKind::gpt2_bpe, std::string_view("GPT2BPETokenizer")},
      std::pair{TokenizerKind::sentence_piece, std::string_view("SentencePieceTokenizer")},
      std::pair{TokenizerKind::gpt_sentence_piece, std::string_view("GPTSentencePieceTokenizer")},
      std::pair{TokenizerKind::llama2, std::string_view("Llama2Tokenizer")},
      std::pair{TokenizerKind::tik, std::string_view("TikTokenizer")},
      std::pair{TokenizerKind::bert_lower_case, std::string_view("BertWordPieceLowerCase")},
      std::pair{TokenizerKind::bert_case, std::string_view("BertWordPieceCase")}};
};

constexpr std::string_view tiktoken_pattern_names =
    "v1, v2, tekken, gpt2, llama3, cl100k, o200k, qwen2 or a regular expression";

struct TokenizerOptions {
  TokenizerKind type = TokenizerKind::byte;
  std::string model;  // a file, or the folder of a tokenizer.json
  std::string vocab_file, merge_file;
  std::int64_t vocab_size = 0;   // 0: not given
  std::string tiktoken_pattern;  // empty: v2, unless the file is a .tiktoken, which needs one
  std::int64_t tiktoken_num_special_tokens = 1000;
  std::vector<std::string> special_tokens;  // NAME=ID
  bool include_special_tokens = true;       // those that the post-processor of a tokenizer.json adds
};

}  // namespace tera
