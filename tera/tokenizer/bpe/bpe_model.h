#pragma once
// Byte-pair encoding: a word becomes its characters (or bytes), then neighbours merge, lowest rank first and leftmost
// first among equals, until no merge applies. Ids equal those of Hugging Face's `tokenizers`.

#include <memory>
#include <string_view>

#include "tera/tokenizer/bpe/bpe_data.h"
#include "tera/tokenizer/split_pattern.h"
#include "tera/tokenizer/word_model.h"

namespace tera {

class BpeCuts;
class BpeVocab;

// How text is cut into words for a SentencePiece-like vocabulary, in which U+2581 stands for a space.
struct SpaceRule {
  bool split = false;       // a word begins at every U+2581 (Metaspace with split); else the text is one word
  bool replace_all = true;  // spaces in the text are U+2581; else only those that the text has
};

// Encodes text for a SentencePiece-like vocabulary, for one thread.
class SpacedEncoder {
 public:
  virtual ~SpacedEncoder() = default;
  // Appends the ids of a text (between two added tokens), with U+2581 before it if `prepend`.
  virtual void encode(std::string_view text, bool prepend, std::vector<std::int32_t>& ids) = 0;
};

class BpeModel final : public WordModel {
 public:
  explicit BpeModel(const BpeData& data);  // UserError where the merges do not fit the tokens
  ~BpeModel() override;
  std::unique_ptr<WordEncoder> make_encoder() const override;
  // An encoder of texts (each between two added tokens) that cuts them by the pattern in the same loop.
  std::unique_ptr<WordEncoder> make_text_encoder(SplitPattern pattern) const;
  // An encoder of texts for SentencePiece-like vocabularies.
  std::unique_ptr<SpacedEncoder> make_spaced_encoder(SpaceRule rule) const;

 private:
  std::unique_ptr<const BpeVocab> vocab_;
  std::unique_ptr<const BpeCuts> cuts_;
};

}  // namespace tera
