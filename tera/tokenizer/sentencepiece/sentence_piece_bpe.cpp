#include "tera/tokenizer/sentencepiece/sentence_piece_bpe.h"

#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tera/tokenizer/bpe/double_array.h"
#include "tera/tokenizer/unicode/unicode.h"

namespace tera {
namespace {

using Model = SentencePieceModel;

// SentencePiece merges the two neighbours that are together the piece of the highest score; merges of pairs are ordered
// by pair. Both are equivalent, since a piece is always made of one pair only: the two that are left when its spelling
// alone is merged as far as possible.
class PairFinder {
 public:
  explicit PairFinder(const Model& model) : pieces_(model.pieces) {
    std::vector<DoubleArray::Key> keys;
    for (std::size_t id = 0; id < pieces_.size(); ++id)
      if (pieces_[id].type == Model::Type::normal) keys.push_back({pieces_[id].text, static_cast<std::int32_t>(id)});
    ids_ = DoubleArray(std::move(keys));
  }

  enum class Result : std::uint8_t { pair, unreachable, no_pair_of_pieces };
  Result find(std::string_view text, std::pair<std::int32_t, std::int32_t>& halves) {
    begins_.clear();
    for (std::size_t at = 0; at < text.size(); at += front_character(text.substr(at)).bytes) begins_.push_back(at);
    begins_.push_back(text.size());
    unions_.clear();
    for (std::size_t i = 0; i + 2 < begins_.size(); ++i) unions_.push_back(part(text, i, i + 2));
    while (unions_.size() > 1) {
      const std::size_t best = best_union();
      if (unions_[best] < 0) return Result::unreachable;
      begins_.erase(begins_.begin() + static_cast<std::ptrdiff_t>(best) + 1);
      unions_.erase(unions_.begin() + static_cast<std::ptrdiff_t>(best));
      if (best < unions_.size()) unions_[best] = part(text, best, best + 2);
      if (best > 0) unions_[best - 1] = part(text, best - 1, best + 1);
    }
    halves = {part(text, 0, 1), part(text, 1, 2)};
    return halves.first < 0 || halves.second < 0 ? Result::no_pair_of_pieces : Result::pair;
  }

 private:
  std::int32_t part(std::string_view text, std::size_t from, std::size_t to) const {
    return ids_.find(text.substr(begins_[from], begins_[to] - begins_[from]));
  }

  // The leftmost pair of the highest score.
  std::size_t best_union() const {
    const auto score = [&](std::int32_t id) { return pieces_[static_cast<std::size_t>(id)].score; };
    std::size_t best = 0;
    for (std::size_t i = 1; i < unions_.size(); ++i)
      if (unions_[i] >= 0 && (unions_[best] < 0 || score(unions_[i]) > score(unions_[best]))) best = i;
    return best;
  }

  const std::vector<Model::Piece>& pieces_;
  DoubleArray ids_;
  std::vector<std::size_t> begins_;  // begins of symbols, then the end
  std::vector<std::int32_t> unions_;
};

bool is_single(std::string_view text) { return front_character(text).bytes == text.size(); }

// One character, several times.
bool is_run(std::string_view text) {
  const std::string_view first = text.substr(0, front_character(text).bytes);
  while (text.starts_with(first)) text.remove_prefix(first.size());
  return text.empty();
}

// Ids of the normal pieces of several characters, the highest score first. Of equal scores SentencePiece takes the
// leftmost pair. For runs of one character (of spaces, in Llama's model) that lets the left run grow as far as it can,
// as it does if longer ones come first; nothing for others of equal scores.
std::optional<std::vector<std::size_t>> by_score(const Model& model) {
  std::vector<std::size_t> order;
  for (std::size_t id = 0; id < model.pieces.size(); ++id)
    if (model.pieces[id].type == Model::Type::normal && !is_single(model.pieces[id].text)) order.push_back(id);
  const auto key = [&](std::size_t id) {
    return std::pair(-model.pieces[id].score, -std::ssize(model.pieces[id].text));
  };
  std::ranges::stable_sort(order, {}, key);
  for (std::size_t i = 1; i < order.size(); ++i) {
    const Model::Piece &left = model.pieces[order[i - 1]], &right = model.pieces[order[i]];
    if (left.score == right.score && !(is_run(left.text) && is_run(right.text))) return {};
  }
  return order;
}

bool is_plain(const Model& model) {
  std::size_t bytes = 0;
  for (const Model::Piece& piece : model.pieces) {
    if (piece.type == Model::Type::unused) return false;
    bytes += piece.type == Model::Type::byte;
  }
  return model.kind == Model::Kind::bpe && model.byte_fallback && bytes == 256 && model.escape_whitespaces;
}

std::optional<BpeData> merges_of(const Model& model) {
  if (!is_plain(model)) return {};
  const auto order = by_score(model);
  if (!order) return {};
  BpeData data;
  data.byte_fallback = true;
  for (const Model::Piece& piece : model.pieces) {
    // Pieces that no text may become have no spelling here.
    const bool named = piece.type == Model::Type::normal || piece.type == Model::Type::byte;
    data.tokens.emplace_back(named ? piece.text : std::string_view());
  }
  PairFinder finder(model);
  for (const std::size_t id : *order) {
    std::pair<std::int32_t, std::int32_t> halves;
    const PairFinder::Result result = finder.find(model.pieces[id].text, halves);
    if (result == PairFinder::Result::no_pair_of_pieces) return {};
    if (result == PairFinder::Result::pair) data.merges.push_back(halves);
  }
  return data;
}

class PlainEncoder final : public Encoder {
 public:
  PlainEncoder(std::unique_ptr<SpacedEncoder> encoder, bool prepend)
      : encoder_(std::move(encoder)), prepend_(prepend) {}
  void encode(std::string_view text, std::vector<std::int32_t>& ids) override {
    if (!text.empty()) encoder_->encode(text, prepend_, ids);
  }

 private:
  std::unique_ptr<SpacedEncoder> encoder_;
  bool prepend_;
};

class NormalizingEncoder final : public Encoder {
 public:
  NormalizingEncoder(const SentencePieceNormalizer& normalizer, std::unique_ptr<SpacedEncoder> encoder)
      : normalizer_(normalizer), encoder_(std::move(encoder)) {}

  // Symbols of the user stand for themselves; what lies between them is merged, each part on its own.
  void encode(std::string_view text, std::vector<std::int32_t>& ids) override {
    normalizer_.apply(text, normalized_);
    const DoubleArray& symbols = normalizer_.user_defined();
    std::string_view rest = normalized_;
    for (std::size_t at = 0; normalizer_.has_user_defined() && at < rest.size();) {
      const DoubleArray::Match symbol = symbols.longest_prefix(rest.substr(at));
      if (symbol.bytes == 0) {
        at += front_character(rest.substr(at)).bytes;
        continue;
      }
      encode_part(rest.substr(0, at), ids);
      ids.push_back(symbol.value);
      rest.remove_prefix(at + symbol.bytes);
      at = 0;
    }
    encode_part(rest, ids);
  }

 private:
  void encode_part(std::string_view part, std::vector<std::int32_t>& ids) {
    if (!part.empty()) encoder_->encode(part, false, ids);
  }

  const SentencePieceNormalizer& normalizer_;
  std::unique_ptr<SpacedEncoder> encoder_;
  std::string normalized_;
};

}  // namespace

SentencePieceBpe::SentencePieceBpe(const Model& model, const BpeData& data)
    : bpe_(data), add_dummy_prefix_(model.add_dummy_prefix) {
  const bool has_symbols =
      std::ranges::find(model.pieces, Model::Type::user_defined, &Model::Piece::type) != model.pieces.end();
  if (!model.charsmap.empty() || model.remove_extra_whitespaces || model.space_behind || has_symbols)
    normalizer_.emplace(model);
}

std::unique_ptr<const SentencePieceBpe> SentencePieceBpe::make(const Model& model) {
  const std::optional<BpeData> data = merges_of(model);
  if (!data) return nullptr;
  return std::unique_ptr<const SentencePieceBpe>(new SentencePieceBpe(model, *data));
}

std::unique_ptr<Encoder> SentencePieceBpe::make_encoder() const {
  if (!normalizer_)
    return std::make_unique<PlainEncoder>(bpe_.make_spaced_encoder({.split = false, .replace_all = true}),
                                          add_dummy_prefix_);
  return std::make_unique<NormalizingEncoder>(*normalizer_,
                                              bpe_.make_spaced_encoder({.split = false, .replace_all = false}));
}

}  // namespace tera
