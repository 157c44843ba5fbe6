#pragma once
// How text becomes token ids.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tera/tokenizer/tokenizer_options.h"

namespace tera {

struct Field;

struct TokenizerConfig {
  TokenizerKind tokenizer_type = TokenizerKind::byte;
  std::string tokenizer_model, vocab_file, merge_file;
  std::int64_t vocab_size = 0;
  std::string tiktoken_pattern;  // empty: v2, unless the file is a .tiktoken, which needs one
  std::int64_t tiktoken_num_special_tokens = 1000;
  std::vector<std::string> special_tokens;
  bool tokenizer_hf_no_include_special_tokens = false;

  static std::span<const Field> fields();
  TokenizerOptions options() const;
  bool operator==(const TokenizerConfig&) const = default;
};

}  // namespace tera
