#include "tera/tokenizer/sentencepiece/sentence_piece_unigram.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <string>

#include "tera/tokenizer/unigram_path.h"

namespace tera {

class SentencePieceUnigramEncoder final : public Encoder {
 public:
  explicit SentencePieceUnigramEncoder(const SentencePieceUnigram& model) : model_(model) {}

  void encode(std::string_view text, std::vector<std::int32_t>& ids) override {
    model_.normalizer_.apply(text, normalized_);
    const auto cuts =
        path_.find({&model_.tokens_, model_.scores_, model_.unk_score_, model_.unk_id_}, normalized_, [](auto) {});
    bool after_unknown = false;
    for (std::size_t i = cuts.size(); i-- > 0;) {
      const bool unknown = cuts[i].id == model_.unk_id_;
      if (unknown && model_.byte_fallback_)
        for (std::size_t k = i + 1 < cuts.size() ? cuts[i + 1].end : 0; k < cuts[i].end; ++k)
          ids.push_back(model_.byte_ids_[static_cast<unsigned char>(normalized_[k])]);
      else if (!unknown || !after_unknown)  // neighbours that are unknown are one
        ids.push_back(cuts[i].id);
      after_unknown = unknown;
    }
  }

 private:
  const SentencePieceUnigram& model_;
  std::string normalized_;
  UnigramPath<float> path_;
};

SentencePieceUnigram::SentencePieceUnigram(const SentencePieceModel& model)
    : normalizer_(model), byte_fallback_(model.byte_fallback) {
  using Type = SentencePieceModel::Type;
  constexpr float unk_penalty = 10;
  float least = std::numeric_limits<float>::max(), largest = std::numeric_limits<float>::lowest();
  for (const auto& piece : model.pieces) {
    if (piece.type != Type::normal) continue;
    least = std::min(least, piece.score);
    largest = std::max(largest, piece.score);
  }
  unk_score_ = least - unk_penalty;
  std::vector<DoubleArray::Key> keys;
  for (const auto& piece : model.pieces) {
    const auto id = static_cast<std::int32_t>(scores_.size());
    const bool chosen = piece.type == Type::user_defined;  // before anything else
    scores_.push_back(chosen ? static_cast<float>(static_cast<float>(piece.text.size()) * largest - 0.1) : piece.score);
    if (chosen || piece.type == Type::normal) keys.push_back({piece.text, id});
    if (piece.type == Type::unknown) unk_id_ = id;
  }
  tokens_ = DoubleArray(std::move(keys));
  for (std::size_t byte = 0; byte < byte_ids_.size(); ++byte) {
    const auto found =
        std::ranges::find(model.pieces, fmt::format("<0x{:02X}>", byte), &SentencePieceModel::Piece::text);
    byte_ids_[byte] = found == model.pieces.end() ? unk_id_ : static_cast<std::int32_t>(found - model.pieces.begin());
  }
}

std::unique_ptr<Encoder> SentencePieceUnigram::make_encoder() const {
  return std::make_unique<SentencePieceUnigramEncoder>(*this);
}

}  // namespace tera
