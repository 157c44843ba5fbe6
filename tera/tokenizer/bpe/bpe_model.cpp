#include "tera/tokenizer/bpe/bpe_model.h"

#include "tera/base/error.h"
#include "tera/tokenizer/bpe/bpe_spaced.h"
#include "tera/tokenizer/bpe/bpe_vocab.h"
#include "tera/tokenizer/bpe/bpe_words.h"
#include "tera/tokenizer/split_pattern_scan.h"

namespace tera {

namespace {

class BpeWordEncoder final : public WordEncoder {
 public:
  explicit BpeWordEncoder(const BpeVocab& vocab) : words_(vocab) {}

  void encode(std::string_view word, std::vector<std::int32_t>& ids) override {
    if (word.empty()) return;
    words_.begin(ids, word.data() + word.size());
    words_.add(word.data(), word.data() + word.size());
    words_.finish();
  }

 private:
  BpeWords words_;
};

template <class Scanner>
class BpeTextEncoder final : public WordEncoder {
 public:
  explicit BpeTextEncoder(const BpeVocab& vocab) : words_(vocab) {}

  void encode(std::string_view text, std::vector<std::int32_t>& ids) override {
    const char* const end = text.data() + text.size();
    words_.begin(ids, end);
    for (const char* at = text.data(); at < end;) {
      const char* const next = Scanner::next(at, end);
      words_.add(at, next);
      at = next;
    }
    words_.finish();
  }

 private:
  BpeWords words_;
};

}  // namespace

BpeModel::BpeModel(const BpeData& data)
    : vocab_(std::make_unique<BpeVocab>(data)), cuts_(std::make_unique<BpeCuts>(*vocab_)) {}
BpeModel::~BpeModel() = default;

std::unique_ptr<WordEncoder> BpeModel::make_encoder() const { return std::make_unique<BpeWordEncoder>(*vocab_); }

std::unique_ptr<WordEncoder> BpeModel::make_text_encoder(SplitPattern pattern) const {
  return split::with_scanner(pattern, [&](auto scanner) -> std::unique_ptr<WordEncoder> {
    return std::make_unique<BpeTextEncoder<decltype(scanner)>>(*vocab_);
  });
}

std::unique_ptr<SpacedEncoder> BpeModel::make_spaced_encoder(SpaceRule rule) const {
  return tera::make_spaced_encoder(*vocab_, *cuts_, rule);
}

}  // namespace tera
