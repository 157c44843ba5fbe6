#include "tera/tokenizer/pre_tokenizers.h"

#include <algorithm>
#include <limits>

#include "tera/base/error.h"
#include "tera/tokenizer/byte_level.h"
#include "tera/tokenizer/split_pattern.h"
#include "tera/tokenizer/unicode.h"

namespace tera {
namespace {

using Piece = PieceText::Piece;

struct Match {
  std::uint32_t begin, end;
  bool is_match;
};

std::uint32_t to_offset(std::size_t value) {
  require_user(value <= std::numeric_limits<std::uint32_t>::max(), "a text of more than 4 GiB cannot be tokenized");
  return static_cast<std::uint32_t>(value);
}

// Turns matches that cover a piece, in order, into pieces.
void keep_pieces(std::span<const Match> matches, SplitBehavior behavior, std::vector<Piece>& pieces) {
  const std::size_t before = pieces.size();
  bool previous = false;
  for (std::size_t i = 0; i < matches.size(); ++i) {
    const auto [begin, end, is_match] = matches[i];
    const bool follows = pieces.size() > before;
    switch (behavior) {
      case SplitBehavior::isolated: pieces.push_back({begin, end}); break;
      case SplitBehavior::removed:
        if (!is_match) pieces.push_back({begin, end});
        break;
      case SplitBehavior::contiguous:
        if (follows && is_match == previous)
          pieces.back().end = end;
        else
          pieces.push_back({begin, end});
        break;
      case SplitBehavior::merged_with_previous:
        if (follows && is_match && !previous)
          pieces.back().end = end;
        else
          pieces.push_back({begin, end});
        break;
      case SplitBehavior::merged_with_next:
        if (!is_match && i > 0 && matches[i - 1].is_match)
          pieces.back().end = end;
        else
          pieces.push_back({begin, end});
        break;
    }
    previous = is_match;
  }
}

// A step that only cuts. find(text, emit) calls emit(begin, end, is_match) for parts that cover the text.
template <class Find>
class Cutter final : public PreTokenizer {
 public:
  Cutter(SplitBehavior behavior, Find find) : behavior_(behavior), find_(std::move(find)) {}

  void apply(PieceText& text) const override {
    std::vector<Piece> pieces;
    pieces.reserve(text.pieces.size() * 2);
    std::vector<Match> matches;
    for (const Piece piece : text.pieces) {
      matches.clear();
      find_(std::string_view(text.text).substr(piece.begin, piece.end - piece.begin),
            [&](std::size_t begin, std::size_t end, bool is_match) {
              if (begin < end)
                matches.push_back({piece.begin + static_cast<std::uint32_t>(begin),
                                   piece.begin + static_cast<std::uint32_t>(end), is_match});
            });
      keep_pieces(matches, behavior_, pieces);
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

// Matches are the characters that `is_match` holds for, one by one.
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

// Runs of characters of one class, \w or neither \w nor \s; matches are what lies between them.
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
      const std::size_t size = first_word(pattern, text.substr(i));
      emit(i, i + size, true);
      i += size;
    }
  };
}

// A step that writes the text anew, piece by piece. write(piece, first, out): `first` means that nothing at all was
// before it.
template <class Write>
class Rewriter final : public PreTokenizer {
 public:
  explicit Rewriter(Write write) : write_(std::move(write)) {}

  void apply(PieceText& text) const override {
    std::string out;
    out.reserve(text.text.size() + text.text.size() / 2 + 16);
    const bool from_start = text.at_start && !text.pieces.empty() && text.pieces[0].begin == 0;
    for (Piece& piece : text.pieces) {
      const bool first = from_start && piece.begin == 0;
      const std::size_t begin = out.size();
      write_(std::string_view(text.text).substr(piece.begin, piece.end - piece.begin), first, out);
      piece = {to_offset(begin), to_offset(out.size())};
    }
    text.text = std::move(out);
    text.at_start = from_start;
  }

 private:
  Write write_;
};

template <class Write>
std::unique_ptr<PreTokenizer> make_rewriter(Write write) {
  return std::make_unique<Rewriter<Write>>(std::move(write));
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
    chain.add(make_rewriter([](std::string_view piece, bool, std::string& out) {
      if (!piece.starts_with(' ')) out += ' ';
      out += piece;
    }));
  if (step.use_regex) chain.add(make_cutter(SplitBehavior::isolated, by_known_pattern(SplitPattern::gpt2)));
  if (!plain_bytes)
    chain.add(make_rewriter([](std::string_view piece, bool, std::string& out) { out += to_byte_level(piece); }));
}

void add_metaspace(const PreTokenStep& step, Chain& chain) {
  chain.add(make_rewriter([step](std::string_view piece, bool first, std::string& out) {
    const bool begins = piece.starts_with(' ') || piece.starts_with(step.character);
    if (!begins && (step.prepend == PrependScheme::always || (step.prepend == PrependScheme::first && first)))
      out += step.character;
    for (const char c : piece) {
      if (c == ' ')
        out += step.character;
      else
        out += c;
    }
  }));
  if (step.split) chain.add(make_cutter(SplitBehavior::merged_with_next, by_text(step.character)));
}

std::unique_ptr<PreTokenizer> make_split(const PreTokenStep& step) {
  // With `invert`, what matches and what lies between matches change places.
  if (!step.is_regex) {
    auto find = by_text(step.pattern);
    return make_cutter(step.behavior, [find, invert = step.invert](std::string_view text, auto&& emit) {
      find(text, [&](std::size_t begin, std::size_t end, bool is_match) { emit(begin, end, is_match != invert); });
    });
  }
  const auto known = known_split_pattern(step.pattern);
  if (known && step.behavior == SplitBehavior::isolated) return make_cutter(step.behavior, by_known_pattern(*known));
  if (known && step.behavior == SplitBehavior::removed && step.invert)
    return make_cutter(SplitBehavior::isolated, by_known_pattern(*known));
  fail_user("{}: the pattern is not one of those known", step.path);
}

void add_step(const PreTokenStep& step, bool plain_bytes, Chain& chain) {
  switch (step.kind) {
    case PreTokenKind::byte_level: return add_byte_level(step, plain_bytes, chain);
    case PreTokenKind::metaspace: return add_metaspace(step, chain);
    case PreTokenKind::split: return chain.add(make_split(step));
    case PreTokenKind::digits:
      return chain.add(make_cutter(step.individual_digits ? SplitBehavior::isolated : SplitBehavior::contiguous,
                                   by_character([](char32_t c) { return is_numeric(c); })));
    case PreTokenKind::punctuation:
      return chain.add(make_cutter(step.behavior, by_character([](char32_t c) { return is_bert_punctuation(c); })));
    case PreTokenKind::whitespace:
      return chain.add(make_cutter(SplitBehavior::removed,
                                   [](std::string_view text, auto&& emit) { find_between_words(text, emit); }));
    case PreTokenKind::whitespace_split:
      return chain.add(make_cutter(SplitBehavior::removed, by_character([](char32_t c) { return is_white_space(c); })));
    case PreTokenKind::bert:
      chain.add(make_cutter(SplitBehavior::removed, by_character([](char32_t c) { return is_white_space(c); })));
      return chain.add(
          make_cutter(SplitBehavior::isolated, by_character([](char32_t c) { return is_bert_punctuation(c); })));
    case PreTokenKind::delimiter:
      return chain.add(make_cutter(SplitBehavior::removed, by_character([wanted = front_character(step.character).code](
                                                                            char32_t c) { return c == wanted; })));
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
