#pragma once
// Tokenizers in the form of Hugging Face's `tokenizers`: text is searched for added tokens, normalized, cut into words,
// each word becomes ids by the model, and the post-processor adds its own. Ids and decoded text equal those of
// `tokenizers` 0.23.

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tera/tokenizer/added_tokens.h"
#include "tera/tokenizer/bpe_model.h"
#include "tera/tokenizer/decoders.h"
#include "tera/tokenizer/normalizer.h"
#include "tera/tokenizer/post_processor.h"
#include "tera/tokenizer/pre_tokenizer.h"
#include "tera/tokenizer/tokenizer.h"
#include "tera/tokenizer/word_model.h"

namespace tera {

struct TokenizerFile;

// How the text between two added tokens becomes ids: word by word, or by a loop that cuts and encodes at once.
struct TextRule {
  std::optional<SplitPattern> pattern;  // that loop for byte-level BPE
  std::optional<SpaceRule> spaces;      // that loop for SentencePiece-like BPE
  bool prefix_space = false;            // a space (or what stands for it) is put before a text that has none
  bool prefix_only_at_start = false;    // only where all text begins; also told for a pre-tokenizer that asks for it
  bool prefix_in_any_case = false;      // also before one that has a space
};

// Everything that never changes.
struct TokenizerParts {
  std::vector<AddedToken> added;  // with their ids
  std::unique_ptr<Normalizer> normalizer;
  std::unique_ptr<PreTokenizer> pre_tokenizer;
  std::unique_ptr<WordModel> model;  // a BpeModel where `rule` has a loop
  TextRule rule;
  PostProcessor post_processor;
  bool has_post_processor = false;   // the file says something about it, if only that it adds nothing
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
  const TokenFinder& raw_tokens() const { return raw_; }                // looked for in the text as it is
  const TokenFinder& normalized_tokens() const { return normalized_; }  // and behind the normalizer

 private:
  TokenizerParts parts_;
  TokenFinder raw_, normalized_;
};

// The files of a tokenizer.json or its folder.
std::vector<std::filesystem::path> hugging_face_files(const std::filesystem::path& path);

}  // namespace tera
