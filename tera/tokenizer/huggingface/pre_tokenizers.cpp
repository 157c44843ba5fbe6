#include "tera/tokenizer/huggingface/pre_tokenizers.h"

#include <algorithm>
#include <array>
#include <limits>

#include "tera/base/error.h"
#include "tera/tokenizer/bpe/byte_level.h"
#include "tera/tokenizer/huggingface/normalizer.h"
#include "tera/tokenizer/split_pattern.h"
#include "tera/tokenizer/unicode/regex.h"
#include "tera/tokenizer/unicode/unicode.h"

namespace tera {
namespace {

using Piece = PieceText::Piece;

std::uint32_t to_offset(std::size_t value) {
  require_user(value <= std::numeric_limits<std::uint32_t>::max(), "a text of more than 4 GiB cannot be tokenized");
  return static_cast<std::uint32_t>(value);
}

// A step that only splits. find(text, emit) calls emit(begin, end, is_match) for parts that cover the text.
template <class Find>
class Cutter final : public PreTokenizer {
 public:
  Cutter(SplitBehavior behavior, Find find) : behavior_(behavior), find_(std::move(find)) {}

  void apply(PieceText& text) const override {
    std::vector<Piece> pieces;
    pieces.reserve(text.pieces.size() * 2);
    std::vector<MatchSpan> spans;
    for (const Piece piece : text.pieces) {
      spans.clear();
      find_(std::string_view(text.text).substr(piece.begin, piece.end - piece.begin),
            [&](std::size_t begin, std::size_t end, bool is_match) {
              if (begin < end)
                spans.push_back({static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(end), is_match});
            });
      append_pieces(spans, behavior_, piece.begin, pieces);
    }
    text.pieces = std::move(pieces);
  }

 private:
  SplitBehavior behavior_;
  Find find_;
};

template <class Find>
std::unique_ptr<PreTokenizer> make_cutter(SplitBehavior behavior, Find find) {
  return std::make_unique<Cutter<Find>>(behavior, std::move(find));
}

// The class of a character in the steps that classify each alone.
enum class CharacterClass : std::uint8_t { part, dropped, alone };  // part of a piece; left out; a piece of its own

// class_of(code) returns the class. ASCII has a lookup table.
template <class FateOf>
class CharacterCutter final : public PreTokenizer {
 public:
  explicit CharacterCutter(FateOf fate_of) : fate_of_(std::move(fate_of)) {
    for (char32_t c = 0; c < ascii_.size(); ++c) ascii_[c] = fate_of_(c);
  }

  void apply(PieceText& text) const override {
    std::vector<Piece> pieces;
    pieces.reserve(text.text.size() / 4 + text.pieces.size());
    for (const Piece piece : text.pieces) cut(text.text, piece, pieces);
    text.pieces = std::move(pieces);
  }

 private:
  void cut(const std::string& text, Piece piece, std::vector<Piece>& pieces) const {
    std::uint32_t begin = piece.begin;
    for (std::uint32_t i = piece.begin; i < piece.end;) {
      const auto byte = static_cast<unsigned char>(text[i]);
      Utf8Character c{byte, 1};
      if (byte >= ascii_.size()) c = front_character(text.data() + i, piece.end - i);
      const CharacterClass fate = byte < ascii_.size() ? ascii_[byte] : fate_of_(c.code);
      if (fate != CharacterClass::part) {
        if (begin < i) pieces.push_back({begin, i});
        begin = i + c.bytes;
        if (fate == CharacterClass::alone) pieces.push_back({i, begin});
      }
      i += c.bytes;
    }
    if (begin < piece.end) pieces.push_back({begin, piece.end});
  }

  FateOf fate_of_;
  std::array<CharacterClass, 128> ascii_{};
};

template <class FateOf>
std::unique_ptr<PreTokenizer> cut_characters(FateOf fate_of) {
  return std::make_unique<CharacterCutter<FateOf>>(std::move(fate_of));
}

// Matches are the single characters for which `is_match` holds.
template <class Test>
auto by_character(Test is_match) {
  return [is_match](std::string_view text, auto&& emit) {
    std::size_t done = 0;
    for (std::size_t i = 0; i < text.size();) {
      const Utf8Character c = front_character(text.substr(i));
      if (is_match(c.code)) {
        emit(done, i, false);
        emit(i, i + c.bytes, true);
        done = i + c.bytes;
      }
      i += c.bytes;
    }
    emit(done, text.size(), false);
  };
}

auto by_text(std::string wanted) {
  return [wanted](std::string_view text, auto&& emit) {
    std::size_t done = 0;
    for (std::size_t at = text.find(wanted); at != std::string_view::npos; at = text.find(wanted, done)) {
      emit(done, at, false);
      emit(at, at + wanted.size(), true);
      done = at + wanted.size();
    }
    emit(done, text.size(), false);
  };
}

// Runs of characters of one class, \w or neither \w nor \s; matches are the text between them.
void find_between_words(std::string_view text, auto&& emit) {
  enum class Class : std::uint8_t { space, word, other };
  const auto class_of = [](char32_t c) {
    return is_word_character(c) ? Class::word : is_white_space(c) ? Class::space : Class::other;
  };
  std::size_t begin = 0;
  Class run = Class::space;
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Character c = front_character(text.substr(i));
    const Class now = class_of(c.code);
    if (now != run) {
      emit(begin, i, run == Class::space);
      begin = i;
      run = now;
    }
    i += c.bytes;
  }
  emit(begin, text.size(), run == Class::space);
}

auto by_length(std::int64_t length) {
  return [length](std::string_view text, auto&& emit) {
    std::size_t begin = 0;
    std::int64_t count = 0;
    for (std::size_t i = 0; i < text.size();) {
      i += front_character(text.substr(i)).bytes;
      if (++count < length) continue;
      emit(begin, i, false);
      begin = i;
      count = 0;
    }
    emit(begin, text.size(), false);
  };
}

auto by_known_pattern(SplitPattern pattern) {
  return [pattern](std::string_view text, auto&& emit) {
    for (std::size_t i = 0; i < text.size();) {
      const std::size_t size = first_word_bytes(pattern, text.substr(i));
      emit(i, i + size, true);
      i += size;
    }
  };
}

// A step that rewrites the text piece by piece, each character alone, except for a prefix of the piece.
// write(piece, first, out): `first` means that the piece is at the begin of the input. size(piece, first): the bytes
// that it writes.
template <class Size, class Write>
class Rewriter final : public PreTokenizer {
 public:
  Rewriter(Size size, Write write) : size_(std::move(size)), write_(std::move(write)) {}

  void apply(PieceText& text) const override {
    check_size(text);
    std::string out;
    out.reserve(text.text.size() + text.text.size() / 2 + 16);
    std::size_t start = 0;
    for (Piece& piece : text.pieces) {
      const bool first = piece.begin < text.start;
      const std::size_t begin = out.size();
      const std::string_view content = std::string_view(text.text).substr(piece.begin, piece.end - piece.begin);
      if (first) {
        write_(content.substr(0, text.start - piece.begin), first, out);
        start = out.size();
        out.resize(begin);
      }
      write_(content, first, out);
      piece = {to_offset(begin), to_offset(out.size())};
    }
    text.text = std::move(out);
    text.start = start;
  }

 private:
  void check_size(const PieceText& text) const {
    constexpr std::size_t max_bytes = Normalizer::max_bytes, max_growth = 8;  // a character for each byte and before it
    if (text.text.size() <= max_bytes / max_growth) return;
    std::size_t size = 0;
    for (const Piece piece : text.pieces)
      size += size_(std::string_view(text.text).substr(piece.begin, piece.end - piece.begin), piece.begin < text.start);
    require_user(size <= max_bytes, "the pre-tokenizer makes more than {} bytes of a text, the most that is tokenized",
                 max_bytes);
  }

  Size size_;
  Write write_;
};

template <class Size, class Write>
std::unique_ptr<PreTokenizer> make_rewriter(Size size, Write write) {
  return std::make_unique<Rewriter<Size, Write>>(std::move(size), std::move(write));
}

class Chain final : public PreTokenizer {
 public:
  void add(std::unique_ptr<PreTokenizer> step) { steps_.push_back(std::move(step)); }
  void apply(PieceText& text) const override {
    for (const auto& step : steps_) step->apply(text);
  }

 private:
  std::vector<std::unique_ptr<PreTokenizer>> steps_;
};

void add_byte_level(const PreTokenStep& step, bool plain_bytes, Chain& chain) {
  if (step.add_prefix_space)
    chain.add(make_rewriter([](std::string_view piece, bool) { return piece.size() + !piece.starts_with(' '); },
                            [](std::string_view piece, bool, std::string& out) {
                              if (!piece.starts_with(' ')) out += ' ';
                              out += piece;
                            }));
  if (step.use_regex) chain.add(make_cutter(SplitBehavior::isolated, by_known_pattern(SplitPattern::gpt2)));
  if (!plain_bytes)
    chain.add(make_rewriter([](std::string_view piece, bool) { return byte_level_size(piece); },
                            [](std::string_view piece, bool, std::string& out) { out += to_byte_level(piece); }));
}

void add_metaspace(const PreTokenStep& step, Chain& chain) {
  const auto is_marked = [step](std::string_view piece, bool first) {
    if (piece.starts_with(' ') || piece.starts_with(step.character)) return false;
    return step.prepend == PrependScheme::always || (step.prepend == PrependScheme::first && first);
  };
  const auto size = [is_marked, mark = step.character.size()](std::string_view piece, bool first) {
    const auto spaces = static_cast<std::size_t>(std::ranges::count(piece, ' '));
    return piece.size() - spaces + mark * (spaces + is_marked(piece, first));
  };
  chain.add(
      make_rewriter(size, [is_marked, mark = step.character](std::string_view piece, bool first, std::string& out) {
        if (is_marked(piece, first)) out += mark;
        for (std::size_t space; (space = piece.find(' ')) != std::string_view::npos; piece.remove_prefix(space + 1))
          out.append(piece.substr(0, space)).append(mark);
        out += piece;
      }));
  if (step.split) chain.add(make_cutter(SplitBehavior::merged_with_next, by_text(step.character)));
}

std::unique_ptr<PreTokenizer> make_split(const PreTokenStep& step) {
  const SplitRule rule{.behavior = step.behavior, .invert = step.invert};
  if (!step.is_regex) return make_text_split(step.pattern, rule);
  // Known patterns have no text between their matches.
  const auto known = known_split_pattern(step.pattern, RegexDialect::oniguruma);
  const bool full_match =
      step.behavior == SplitBehavior::isolated || (step.behavior == SplitBehavior::removed && step.invert);
  if (known && full_match) return make_cutter(SplitBehavior::isolated, by_known_pattern(*known));
  return make_regex_split(Regex(step.pattern, RegexDialect::oniguruma, step.path + ".pattern"), rule);
}

void add_step(const PreTokenStep& step, bool plain_bytes, Chain& chain) {
  switch (step.kind) {
    case PreTokenKind::byte_level: return add_byte_level(step, plain_bytes, chain);
    case PreTokenKind::metaspace: return add_metaspace(step, chain);
    case PreTokenKind::split: return chain.add(make_split(step));
    case PreTokenKind::digits:
      if (step.individual_digits)
        return chain.add(
            cut_characters([](char32_t c) { return is_numeric(c) ? CharacterClass::alone : CharacterClass::part; }));
      return chain.add(make_cutter(SplitBehavior::contiguous, by_character([](char32_t c) { return is_numeric(c); })));
    case PreTokenKind::punctuation:
      return chain.add(make_cutter(step.behavior, by_character([](char32_t c) { return is_bert_punctuation(c); })));
    case PreTokenKind::whitespace:
      return chain.add(make_cutter(SplitBehavior::removed,
                                   [](std::string_view text, auto&& emit) { find_between_words(text, emit); }));
    case PreTokenKind::whitespace_split:
      return chain.add(cut_characters(
          [](char32_t c) { return is_white_space(c) ? CharacterClass::dropped : CharacterClass::part; }));
    case PreTokenKind::bert:
      return chain.add(cut_characters([](char32_t c) {
        return is_white_space(c)        ? CharacterClass::dropped
               : is_bert_punctuation(c) ? CharacterClass::alone
                                        : CharacterClass::part;
      }));
    case PreTokenKind::delimiter:
      return chain.add(cut_characters([wanted = front_character(step.character).code](char32_t c) {
        return c == wanted ? CharacterClass::dropped : CharacterClass::part;
      }));
    case PreTokenKind::fixed_length: return chain.add(make_cutter(SplitBehavior::isolated, by_length(step.length)));
  }
}

}  // namespace

std::unique_ptr<PreTokenizer> make_pre_tokenizer(std::span<const PreTokenStep> steps, bool plain_bytes) {
  auto chain = std::make_unique<Chain>();
  for (std::size_t i = 0; i < steps.size(); ++i) add_step(steps[i], plain_bytes && i + 1 == steps.size(), *chain);
  return chain;
}

}  // namespace tera
