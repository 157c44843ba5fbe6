#pragma once
// SentencePiece models: read, checked and decoded with the library of that name.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tera/tokenizer/tokenizer.h"

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace tera {

class SentencePieceBpe;
class SentencePieceUnigram;

// Megatron-LM's SentencePieceTokenizer, GPTSentencePieceTokenizer and Llama2Tokenizer: the pieces of the text, with no
// token added at its ends. A document ends with the model's end of sentence.
class SentencePieceTokenizer final : public Tokenizer {
 public:
  explicit SentencePieceTokenizer(const std::filesystem::path& model);  // a UserError that names the file
  ~SentencePieceTokenizer() override;

  std::unique_ptr<Encoder> make_encoder() const override;
  // Ids outside of the vocabulary become U+FFFD.
  std::string decode(std::span<const std::int32_t> ids) const override;
  std::int64_t vocab_size() const override;
  std::int32_t eod() const override;
  std::int32_t pad() const override;
  std::int32_t bos() const override;
  std::int32_t unk() const override;

 private:
  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;
  // Our own encoders, for models that they support; else the library encodes. It always decodes.
  std::unique_ptr<const SentencePieceUnigram> unigram_;
  std::unique_ptr<const SentencePieceBpe> bpe_;
};

}  // namespace tera
