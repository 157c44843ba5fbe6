#include "tera/tokenizer/sentencepiece/sentence_piece_normalize.h"

#include <cstring>

#include "tera/base/utf8.h"

namespace tera {

SentencePieceNormalizer::SentencePieceNormalizer(const SentencePieceModel& model)
    : space_(model.escape_whitespaces ? "\u2581" : " "),
      add_dummy_prefix_(model.add_dummy_prefix),
      remove_extra_(model.remove_extra_whitespaces),
      space_behind_(model.space_behind) {
  std::vector<DoubleArray::Key> symbols;
  for (std::size_t id = 0; id < model.pieces.size(); ++id)
    if (model.pieces[id].type == SentencePieceModel::Type::user_defined)
      symbols.push_back({model.pieces[id].text, static_cast<std::int32_t>(id)});
  has_user_defined_ = !symbols.empty();
  user_defined_ = DoubleArray(std::move(symbols));
  if (model.charsmap.empty()) return;
  std::uint32_t size = 0;
  std::memcpy(&size, model.charsmap.data(), sizeof(size));
  trie_.resize(size / sizeof(std::uint32_t));
  std::memcpy(trie_.data(), model.charsmap.data() + sizeof(size), size);
  replacements_ = model.charsmap.substr(sizeof(size) + size);
}

void SentencePieceNormalizer::apply(std::string_view text, std::string& normalized) const {
  normalized.clear();
  while (remove_extra_ && !text.empty()) {
    const Step step = front(text);
    if (step.replacement != " ") break;
    text.remove_prefix(step.bytes);
  }
  if (text.empty()) return;
  if (add_dummy_prefix_ && !space_behind_) normalized += space_;
  for (bool after_space = remove_extra_; !text.empty();) {
    Step step = front(text);
    text.remove_prefix(step.bytes);
    while (after_space && step.replacement.starts_with(' ')) step.replacement.remove_prefix(1);
    if (step.replacement.empty()) continue;
    for (const char c : step.replacement) {
      if (c == ' ')
        normalized += space_;
      else
        normalized += c;
    }
    after_space = remove_extra_ && step.replacement.ends_with(' ');
  }
  while (remove_extra_ && normalized.ends_with(space_)) normalized.resize(normalized.size() - space_.size());
  if (add_dummy_prefix_ && space_behind_) normalized += space_;
}

// The model's table was checked when it was read: no step leaves it.
SentencePieceNormalizer::Step SentencePieceNormalizer::front(std::string_view text) const {
  if (const std::size_t symbol = user_defined_.longest_prefix(text).bytes; symbol > 0)
    return {text.substr(0, symbol), symbol};
  Step longest{{}, 0};
  const auto offset = [&](std::size_t node) { return std::size_t{trie_[node] >> 10} << ((trie_[node] & 0x200U) >> 6); };
  for (std::size_t i = 0, base = trie_.empty() ? 0 : offset(0); i < text.size() && !trie_.empty(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const std::size_t node = base ^ byte;
    if (byte == 0 || (trie_[node] & 0x800000ffU) != byte) break;
    base = node ^ offset(node);
    if (trie_[node] >> 8 & 1) longest = {replacements_.data() + (trie_[base] & 0x7fffffffU), i + 1};
  }
  if (longest.bytes > 0) return longest;
  const Utf8Step character = next_utf8(text);
  return {character.valid ? text.substr(0, character.bytes) : std::string_view("\ufffd"),
          character.valid ? character.bytes : 1};
}

}  // namespace tera
