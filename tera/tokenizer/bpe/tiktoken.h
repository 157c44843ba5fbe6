#pragma once
// Tokenizers of tiktoken: merging by rank, special tokens recognised in the text.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tera/tokenizer/tokenizer.h"

namespace tera {

struct TiktokenOptions {
  // Megatron's JSON list: the ids of its tokens follow the special ones. Or a `.tiktoken` file: ids are the ranks.
  std::filesystem::path model;
  // v1 or v2 (Megatron's), gpt2, llama3, cl100k, o200k, qwen2, tekken or a regular expression. Empty: v2 for JSON; a
  // `.tiktoken` file has no pattern and needs one.
  std::string pattern;
  std::int64_t num_special_tokens = 1000;   // for a JSON list: <unk> <s> </s> <mask> <pad> <cls> <sep> <SPECIAL_7> ...
  std::int64_t vocab_size = 0;              // for a JSON list, special tokens included; 0: 131072
  std::vector<std::string> special_tokens;  // NAME=ID, of a `.tiktoken` file
};

std::unique_ptr<Tokenizer> make_tiktoken(const TiktokenOptions& options);

}  // namespace tera
