#pragma once

#include <memory>
#include <optional>

#include "tera/tokenizer/bpe/bpe_model.h"
#include "tera/tokenizer/sentencepiece/sentence_piece_model.h"
#include "tera/tokenizer/sentencepiece/sentence_piece_normalize.h"
#include "tera/tokenizer/tokenizer.h"

namespace tera {

// BPE models of SentencePiece in our own engine, with equal ids and many times faster. Not all are supported: make()
// returns none where SentencePiece does something that merges of pairs cannot express.
class SentencePieceBpe {
 public:
  static std::unique_ptr<const SentencePieceBpe> make(const SentencePieceModel& model);
  std::unique_ptr<Encoder> make_encoder() const;  // must not outlive this

 private:
  SentencePieceBpe(const SentencePieceModel& model, const BpeData& data);

  BpeModel bpe_;
  std::optional<SentencePieceNormalizer> normalizer_;  // none where spaces are all there is to rewrite
  bool add_dummy_prefix_;
};

}  // namespace tera
