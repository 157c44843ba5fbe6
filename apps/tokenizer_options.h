#pragma once
// Options of the commands that need a tokenizer: --tokenizer-type and those that depend on it.

#include <memory>
#include <string>

#include "apps/choice.h"
#include "apps/command.h"
#include "tera/tokenizer/make_tokenizer.h"

namespace tera {

class TokenizerArguments {
 public:
  void add_to(Command command) {
    command.add_option("--tokenizer-type", type_, list_names<TokenizerKind>()).type_name("T");
    command
        .add_option("--tokenizer-model", options_.model,
                    "tokenizer.json or its folder; a .model file; a list of tokens as JSON or .tiktoken")
        .type_name("M");
    command.add_option("--vocab-file", options_.vocab_file, "of GPT2BPETokenizer and BertWordPiece").type_name("F");
    command.add_option("--merge-file", options_.merge_file, "of GPT2BPETokenizer").type_name("F");
    command.add_option("--vocab-size", options_.vocab_size, "of NullTokenizer and TikTokenizer").type_name("N");
    command
        .add_option("--tiktoken-pattern", options_.tiktoken_pattern,
                    fmt::format("how TikTokenizer cuts text: {}", tiktoken_pattern_names))
        .type_name("P");
    command
        .add_option("--tiktoken-num-special-tokens", options_.tiktoken_num_special_tokens,
                    "ids that TikTokenizer keeps for special tokens")
        .type_name("N");
    command.add_option("--special-tokens", options_.special_tokens, "of a .tiktoken file").type_name("NAME=ID ...");
    command.add_flag("--tokenizer-hf-no-include-special-tokens", no_special_tokens_,
                     "leave out what the post-processor of a tokenizer.json adds");
  }
  bool given() const { return !type_.empty(); }
  TokenizerOptions options() const {
    require_user(given(), "--tokenizer-type is needed: {}", list_names<TokenizerKind>());
    TokenizerOptions options = options_;
    options.type = parse_choice<TokenizerKind>("--tokenizer-type", type_);
    options.include_special_tokens = !no_special_tokens_;
    return options;
  }
  std::unique_ptr<Tokenizer> make() const { return make_tokenizer(options()); }

 private:
  std::string type_;
  TokenizerOptions options_;
  bool no_special_tokens_ = false;
};

}  // namespace tera
