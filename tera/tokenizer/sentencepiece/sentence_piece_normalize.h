#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tera/tokenizer/bpe/double_array.h"
#include "tera/tokenizer/sentencepiece/sentence_piece_model.h"

namespace tera {

// The normalization of SentencePiece: replacements by a table, the longest first, spaces made
// visible and, if the model wants it, runs of them made one.
class SentencePieceNormalizer {
 public:
  explicit SentencePieceNormalizer(const SentencePieceModel& model);

  void apply(std::string_view text, std::string& normalized) const;

  bool has_user_defined() const { return has_user_defined_; }
  const DoubleArray& user_defined() const { return user_defined_; }  // ids by spelling

 private:
  struct Step {
    std::string_view replacement;
    std::size_t bytes;  // bytes of the text
  };
  Step front(std::string_view text) const;

  DoubleArray user_defined_;  // never changed
  std::vector<std::uint32_t> trie_;
  std::string replacements_;
  std::string space_;  // as it is written
  bool add_dummy_prefix_, remove_extra_, space_behind_, has_user_defined_ = false;
};

}  // namespace tera
