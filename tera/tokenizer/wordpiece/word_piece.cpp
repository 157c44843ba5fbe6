#include "tera/tokenizer/wordpiece/word_piece.h"

#include <algorithm>
#include <vector>

#include "tera/base/error.h"

namespace tera {
namespace {

class WordPieceEncoder final : public WordEncoder {
 public:
  explicit WordPieceEncoder(const WordPiece& model) : model_(model) {}
  void encode(std::string_view word, std::vector<std::int32_t>& ids) override { model_.encode(word, ids); }

 private:
  const WordPiece& model_;
};

std::size_t count_characters(std::string_view text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

}  // namespace

WordPiece::WordPiece(std::span<const Entry> vocabulary, WordPieceOptions options) : options_(std::move(options)) {
  std::vector<DoubleArray::Key> words, continuations;
  for (const auto& [token, id] : vocabulary) {
    if (token == options_.unk_token) unk_ = id;
    if (token.empty()) continue;
    words.push_back({token, id});
    const std::string_view prefix = options_.continuing_subword_prefix;
    if (token.starts_with(prefix) && token.size() > prefix.size())
      continuations.push_back({token.substr(prefix.size()), id});
  }
  words_ = DoubleArray(std::move(words));
  continuations_ = DoubleArray(std::move(continuations));
}

std::unique_ptr<WordEncoder> WordPiece::make_encoder() const { return std::make_unique<WordPieceEncoder>(*this); }

void WordPiece::encode_parts(std::string_view word, DoubleArray::Match match, std::vector<std::int32_t>& ids) const {
  const std::size_t before = ids.size();
  const bool too_long =
      word.size() > options_.max_input_chars_per_word && count_characters(word) > options_.max_input_chars_per_word;
  std::string_view rest = word;
  while (!rest.empty() && !too_long && match.bytes > 0) {
    ids.push_back(match.value);
    rest.remove_prefix(match.bytes);
    match = continuations_.longest_prefix(rest);
  }
  if (rest.empty()) return;
  if (unk_ < 0)
    fail_user("the word '{:.60}' is not in the vocabulary, which has no unknown token '{}'", word, options_.unk_token);
  ids.resize(before);
  ids.push_back(unk_);
}

}  // namespace tera
