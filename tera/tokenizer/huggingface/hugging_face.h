#pragma once
// Tokenizers in the form of Hugging Face's `tokenizers`: text is searched for added tokens, normalized, cut into words,
// each word becomes ids by the model, and the post-processor adds special tokens. Ids and decoded text equal those of
// `tokenizers` 0.23.

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tera/tokenizer/bpe/bpe_model.h"
#include "tera/tokenizer/huggingface/added_tokens.h"
#include "tera/tokenizer/huggingface/decoders.h"
#include "tera/tokenizer/huggingface/normalizer.h"
#include "tera/tokenizer/huggingface/post_processor.h"
#include "tera/tokenizer/huggingface/pre_tokenizer.h"
#include "tera/tokenizer/tokenizer.h"
#include "tera/tokenizer/word_model.h"

namespace tera {

struct TokenizerFile;

// How the text between two added tokens becomes ids: word by word, or by a fused loop that cuts and encodes.
struct TextRule {
  std::optional<SplitPattern> pattern;  // the fused loop for byte-level BPE
  std::optional<SpaceRule> spaces;      // the fused loop for SentencePiece-like BPE
  bool prefix_space = false;            // a space (or its mark) is put before a text that has none
  bool prefix_only_at_start = false;  // only at the begin of the input; also set for a pre-tokenizer that needs to know
  bool prefix_in_any_case = false;    // put before a text that has a space too
};

// The immutable parts of a tokenizer.
struct TokenizerParts {
  std::vector<AddedToken> added;  // ids are set
  std::unique_ptr<Normalizer> normalizer;
  std::unique_ptr<PreTokenizer> pre_tokenizer;
  std::unique_ptr<WordModel> model;  // a BpeModel where `rule` has a loop
  TextRule rule;
  PostProcessor post_processor;
  bool has_post_processor = false;   // the file has one, even if it adds nothing
  std::unique_ptr<Decoder> decoder;  // none: tokens are joined by spaces
  std::vector<std::string> tokens;   // by id; empty: none
  std::size_t vocab_count = 0;       // tokens of the model
  std::int32_t eod = -1, bos = -1, pad = -1, unk = -1;
};

class HuggingFaceTokenizer final : public Tokenizer {
 public:
  // A tokenizer.json, whose ids are what the file alone says; or its folder, whose tokenizer_config.json may add
  // special tokens, as in transformers.
  static std::unique_ptr<HuggingFaceTokenizer> load(const std::filesystem::path& path, bool include_special_tokens);
  // vocab.json and merges.txt of GPT-2.
  static std::unique_ptr<HuggingFaceTokenizer> load_gpt2(const std::filesystem::path& vocab,
                                                         const std::filesystem::path& merges,
                                                         bool include_special_tokens);
  // vocab.txt of BERT.
  static std::unique_ptr<HuggingFaceTokenizer> load_bert(const std::filesystem::path& vocab, bool lower_case,
                                                         bool include_special_tokens);

  explicit HuggingFaceTokenizer(TokenizerParts parts);
  std::unique_ptr<Encoder> make_encoder() const override;
  std::string decode(std::span<const std::int32_t> ids) const override;
  std::int64_t vocab_size() const override { return std::ssize(parts_.tokens); }
  std::int32_t eod() const override { return parts_.eod; }
  std::int32_t pad() const override { return parts_.pad; }
  std::int32_t bos() const override { return parts_.bos; }
  std::int32_t unk() const override { return parts_.unk; }

  const TokenizerParts& parts() const { return parts_; }
  const TokenFinder& raw_tokens() const { return raw_; }  // searched for in the text before the normalizer
  const TokenFinder& normalized_tokens() const { return normalized_; }  // searched for after the normalizer

 private:
  TokenizerParts parts_;
  TokenFinder raw_, normalized_;
};

// The files of a tokenizer.json or its folder.
std::vector<std::filesystem::path> hugging_face_files(const std::filesystem::path& path);

}  // namespace tera
