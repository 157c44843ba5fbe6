#pragma once
// WordPiece, the model of BERT: the longest token that a word starts with, then the longest continuation, and so on. A
// word that cannot be covered is one unknown token.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "tera/tokenizer/bpe/double_array.h"
#include "tera/tokenizer/word_model.h"

namespace tera {

struct WordPieceOptions {
  std::string unk_token = "[UNK]";
  std::string continuing_subword_prefix = "##";
  std::size_t max_input_chars_per_word = 100;  // longer words are unknown
};

class WordPiece final : public WordModel {
 public:
  using Entry = std::pair<std::string_view, std::int32_t>;  // token, id
  WordPiece(std::span<const Entry> vocabulary, WordPieceOptions options);

  std::unique_ptr<WordEncoder> make_encoder() const override;

  // Appends; from any number of threads. A UserError if the unknown token is needed and there is none.
  void encode(std::string_view word, std::vector<std::int32_t>& ids) const {
    const DoubleArray::Match match = words_.longest_prefix(word);
    if (match.bytes == word.size() && word.size() <= options_.max_input_chars_per_word && !word.empty()) {
      ids.push_back(match.value);
      return;
    }
    encode_parts(word, match, ids);
  }

 private:
  void encode_parts(std::string_view word, DoubleArray::Match match, std::vector<std::int32_t>& ids) const;

  WordPieceOptions options_;
  DoubleArray words_, continuations_;  // the latter without their prefix
  std::int32_t unk_ = -1;
};

}  // namespace tera
