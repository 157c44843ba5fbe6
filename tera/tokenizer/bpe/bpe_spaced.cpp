#include "tera/tokenizer/bpe/bpe_spaced.h"

#include <algorithm>
#include <bit>
#include <string>

#include "tera/tokenizer/bpe/bpe_words.h"
#include "tera/tokenizer/split_pattern_runs.h"
#include "tera/tokenizer/unicode/unicode.h"

namespace tera {

namespace {

// The character, U+2581 as a space.
Utf8Character spaced_character(const char* at, const char* end) {
  Utf8Character character = front_character(at, static_cast<std::size_t>(end - at));
  if (character.code == space_mark_code) character.code = ' ';
  return character;
}

template <class Function>
void for_neighbours(std::string_view token, Function function) {
  const char* const end = token.data() + token.size();
  char32_t left = 0;
  for (const char* at = token.data(); at < end;) {
    const Utf8Character character = spaced_character(at, end);
    if (at != token.data()) function(left, character.code);
    left = character.code;
    at += character.bytes;
  }
}

// Words keep their spaces, so that the cache has short keys.
class CuttingEncoder final : public SpacedEncoder {
 public:
  CuttingEncoder(const BpeVocab& vocab, const BpeCuts& cuts, SpaceRule rule)
      : cuts_(cuts), rule_(rule), words_(vocab, rule.replace_all ? vocab.find(space_mark) : vocab.byte_id(' ')) {}

  void encode(std::string_view text, bool prepend, std::vector<std::int32_t>& ids) override {
    const char* at = text.data();
    const char* const end = at + text.size();
    if (prepend && !text.empty()) {
      at = word_end(at, end, ' ');
      first_ = rule_.replace_all ? " " : space_mark;
      first_.append(text.data(), at);
      words_.begin(ids, first_.data() + first_.size());
      words_.add(first_.data(), first_.data() + first_.size());
    }
    words_.begin(ids, end);
    while (at < end) {
      const Utf8Character character = spaced_character(at, end);
      const char* const next = word_end(at + character.bytes, end, character.code);
      words_.add(at, next);
      at = next;
    }
    words_.finish();
  }

 private:
  // The next cut from `at` on, which has the character `left` before it.
  const char* word_end(const char* at, const char* end, char32_t left) const {
    while (at < end) {
      const unsigned char byte = static_cast<unsigned char>(*at);
      if (split::ascii_flags[byte] & split::letter) {
        // Cutting inside of a run of letters brings nothing.
        if (!cuts_.may_touch(left, byte)) return at;
        at = split::letters_end<split::letter>(at, end, [](const char*) { return false; });
        left = static_cast<unsigned char>(at[-1]);
        continue;
      }
      const Utf8Character character = spaced_character(at, end);
      const bool is_mark = character.code == ' ' && (rule_.replace_all || *at != ' ');
      if ((rule_.split && is_mark) || !cuts_.may_touch(left, character.code)) return at;
      left = character.code;
      at += character.bytes;
    }
    return at;
  }
  const BpeCuts& cuts_;
  const SpaceRule rule_;
  BpeWords words_;
  std::string first_;
};

// For texts where cutting is not known to be safe: one word, as in the reference.
class WholeEncoder final : public SpacedEncoder {
 public:
  WholeEncoder(const BpeVocab& vocab, SpaceRule rule) : rule_(rule), words_(vocab) {}

  void encode(std::string_view text, bool prepend, std::vector<std::int32_t>& ids) override {
    if (text.empty()) return;
    text_ = prepend ? space_mark : std::string_view();
    for (const char c : text) {
      if (c == ' ' && rule_.replace_all)
        text_ += space_mark;
      else
        text_ += c;
    }
    const std::string_view marked = text_;
    words_.begin(ids, marked.data() + marked.size());
    for (std::size_t at = 0; at < marked.size();) {
      const std::size_t mark = rule_.split ? marked.find(space_mark, at + 1) : std::string_view::npos;
      const std::size_t next = std::min(mark, marked.size());
      words_.add(marked.data() + at, marked.data() + next);
      at = next;
    }
    words_.finish();
  }

 private:
  const SpaceRule rule_;
  BpeWords words_;
  std::string text_;
};

}  // namespace

BpeCuts::BpeCuts(const BpeVocab& vocab) : allowed_(vocab.can_be_cut() && !vocab.plain_bytes()) {
  if (!allowed_) return;
  std::size_t pairs = 0;
  for (const BpeVocab::Id id : vocab.unions())
    if (id != BpeVocab::none) for_neighbours(vocab.spelling(id), [&](char32_t, char32_t) { ++pairs; });
  const std::size_t hashed = std::bit_ceil(std::max<std::size_t>(pairs * 4, 1 << 16));
  shift_ = 64 - std::countr_zero(hashed);
  bits_.resize((ascii_bits + hashed) / 64);
  for (const BpeVocab::Id id : vocab.unions()) {
    if (id == BpeVocab::none) continue;
    for_neighbours(vocab.spelling(id), [&](char32_t left, char32_t right) {
      const std::size_t bit = bit_of(left, right);
      bits_[bit >> 6] |= std::uint64_t{1} << (bit & 63);
    });
  }
}

std::unique_ptr<SpacedEncoder> make_spaced_encoder(const BpeVocab& vocab, const BpeCuts& cuts, SpaceRule rule) {
  // A space that is no token would become bytes of its own, not those of U+2581.
  if (cuts.allowed() && (!rule.replace_all || vocab.find(space_mark) != BpeVocab::none))
    return std::make_unique<CuttingEncoder>(vocab, cuts, rule);
  return std::make_unique<WholeEncoder>(vocab, rule);
}

}  // namespace tera
