#include "tera/tokenizer/sentencepiece/sentence_piece.h"

#include <sentencepiece_processor.h>

#include <string_view>

#include "tera/base/error.h"
#include "tera/base/file.h"
#include "tera/base/utf8.h"
#include "tera/tokenizer/sentencepiece/sentence_piece_bpe.h"
#include "tera/tokenizer/sentencepiece/sentence_piece_model.h"
#include "tera/tokenizer/sentencepiece/sentence_piece_unigram.h"

namespace tera {
namespace {

constexpr std::size_t largest_model = std::size_t{256} << 20;

class SentencePieceEncoder final : public Encoder {
 public:
  explicit SentencePieceEncoder(const sentencepiece::SentencePieceProcessor& processor) : processor_(processor) {}

  void encode(std::string_view text, std::vector<std::int32_t>& ids) override {
    const auto status = processor_.Encode(text, &found_);
    if (!status.ok()) fail("SentencePiece cannot encode a text: {}", status.message());
    ids.insert(ids.end(), found_.begin(), found_.end());
  }

 private:
  const sentencepiece::SentencePieceProcessor& processor_;
  std::vector<int> found_;
};

}  // namespace

SentencePieceTokenizer::SentencePieceTokenizer(const std::filesystem::path& model)
    : processor_(std::make_unique<sentencepiece::SentencePieceProcessor>()) {
  const std::string bytes = read_whole_file(model, largest_model);
  const SentencePieceModel read = read_sentence_piece_model(bytes, model.string());
  const auto status = processor_->LoadFromSerializedProto(bytes);
  if (!status.ok()) fail_user("{} is no SentencePiece model: {}", model.string(), status.message());
  try {
    if (read.kind == SentencePieceModel::Kind::unigram) unigram_ = std::make_unique<SentencePieceUnigram>(read);
    if (read.kind == SentencePieceModel::Kind::bpe) bpe_ = SentencePieceBpe::make(read);
  } catch (const UserError& error) {
    fail_user("{}: {}", model.string(), error.what());
  }
}

SentencePieceTokenizer::~SentencePieceTokenizer() = default;

std::unique_ptr<Encoder> SentencePieceTokenizer::make_encoder() const {
  if (unigram_) return unigram_->make_encoder();
  if (bpe_) return bpe_->make_encoder();
  return std::make_unique<SentencePieceEncoder>(*processor_);
}

std::string SentencePieceTokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string all;
  std::vector<int> known;
  const auto flush = [&] {
    std::string text;
    const auto status = processor_->Decode(known, &text);
    if (!status.ok()) fail("SentencePiece cannot decode ids: {}", status.message());
    all += text;
    known.clear();
  };
  for (const std::int32_t id : ids) {
    if (id >= 0 && id < vocab_size()) {
      known.push_back(id);
      continue;
    }
    flush();
    all += "\ufffd";
  }
  flush();
  return valid_utf8_prefix(all) == all.size() ? all : mend_utf8(all);
}

std::int64_t SentencePieceTokenizer::vocab_size() const { return processor_->GetPieceSize(); }
std::int32_t SentencePieceTokenizer::eod() const { return processor_->eos_id(); }
std::int32_t SentencePieceTokenizer::pad() const { return processor_->pad_id(); }
std::int32_t SentencePieceTokenizer::bos() const { return processor_->bos_id(); }
std::int32_t SentencePieceTokenizer::unk() const { return processor_->unk_id(); }

}  // namespace tera
