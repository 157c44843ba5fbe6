#pragma once
// One scanner per split pattern: `next(at, end)` is the end of the word that begins at `at`, which is before `end`.
// Inlined into the encoder's loop.

#include "tera/base/error.h"
#include "tera/tokenizer/split_pattern.h"
#include "tera/tokenizer/split_pattern_runs.h"

namespace tera::split {

// The end of 's 't 'm 'd 're 've 'll at an apostrophe; the apostrophe itself if it is none of them.
template <bool any_case>
inline const char* contraction_end(const char* at, const char* end) {
  const auto letter_at = [&](std::ptrdiff_t i) -> char {
    if (end - at <= i) return '\0';
    return any_case ? static_cast<char>(at[i] | 0x20)
                    : at[i];  // a character that is no letter does not become one of these
  };
  const char first = letter_at(1);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
  const char second = letter_at(2);
  if ((first == 'r' || first == 'v') && second == 'e') return at + 3;
  if (first == 'l' && second == 'l') return at + 3;
  // The long s, U+017F, is an s in another case.
  if (any_case && end - at >= 3 && at[1] == '\xc5' && at[2] == '\xbf') return at + 3;
  return at;
}

enum class NewlineRule {
  none,              // \s+(?!\S)|\s+
  before_space,      // \s*[\r\n]+|\s+(?!\S)|\s+
  after_end_of_text  // \s++$|\s*[\r\n]|\s+(?!\S)|\s
};

// At white space: up to the last line end; else all but the last character, which belongs to the next word; all of it
// at the end of the text. `is_end` says whether a character after the run counts as the end.
template <NewlineRule rule, class IsEnd>
inline const char* spaces_end(const char* at, const char* end, IsEnd is_end) {
  const char* next = at;
  const char* last = at;
  const char* line_end = nullptr;
  while (next < end) {
    const Glyph character = glyph(next, end);
    if (!(character.flags & white)) break;
    last = next;
    next += character.bytes;
    if (rule != NewlineRule::none && is_newline(*last)) line_end = next;
  }
  const bool at_end = next == end || is_end(next);
  if (rule == NewlineRule::after_end_of_text && at_end) return next;
  if (line_end != nullptr) return line_end;
  return at_end || last == at ? next : last;
}

template <NewlineRule rule>
inline const char* spaces_end(const char* at, const char* end) {
  return spaces_end<rule>(at, end, [](const char*) { return false; });
}

inline const char* few_numbers_end(const char* at, const char* end, int max_numbers) {
  for (; at < end && max_numbers > 0; --max_numbers) {
    const Glyph next = glyph(at, end);
    if (!(next.flags & number)) break;
    at += next.bytes;
  }
  return at;
}

// '(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
struct Gpt2Scanner {
  static const char* next(const char* at, const char* end) {
    const char* from = at;
    if (*at == ' ') {
      if (++from == end) return from;
    } else if (*at == '\'') {
      const char* contraction = contraction_end<false>(at, end);
      if (contraction != at) return contraction;
    }
    const Glyph first = glyph(from, end);
    if (first.flags & letter) return letters_end<letter>(from + first.bytes, end);
    if (first.flags & white) return spaces_end<NewlineRule::none>(at, end);
    if (first.flags & number) return numbers_end(from + first.bytes, end);
    return others_end(from + first.bytes, end);
  }
};

// (?i:'s|..)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,max_numbers}| ?[^\s\p{L}\p{N}]+[\r\n]*| then spaces
template <bool contractions, int max_numbers, NewlineRule newlines>
struct Llama3Scanner {
  static const char* next(const char* at, const char* end) {
    const Glyph first = glyph(at, end);
    const char* from = at + first.bytes;
    if (first.flags & letter) return letters_end<letter>(from, end);
    if (first.flags & number) return few_numbers_end(from, end, max_numbers - 1);
    if (contractions && *at == '\'') {
      const char* contraction = contraction_end<true>(at, end);
      if (contraction != at) return contraction;
    }
    if (from < end && !is_newline(*at)) {
      const Glyph second = glyph(from, end);
      if (second.flags & letter) return letters_end<letter>(from + second.bytes, end);
      if (*at == ' ' && !(second.flags & (white | number)))
        return newlines_end(others_end(from + second.bytes, end), end);
    }
    if (first.flags & white) return spaces_end<newlines>(at, end);
    return newlines_end(others_end(from, end), end);
  }
};

// Words by case: [^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+ (then a contraction), or
// the same with + and * swapped; \p{N}{1,max_numbers}| ?[^\s\p{L}\p{N}]+[\r\n/]*| then spaces
template <bool contractions, int max_numbers>
struct CaseScanner {
  static const char* next(const char* at, const char* end) {
    const Glyph first = glyph(at, end);
    const char* from = at + first.bytes;
    if (first.flags & number) return few_numbers_end(from, end, max_numbers - 1);
    if (first.flags & letter) return with_contraction(word_end(at, end, true), end);
    if (!is_newline(*at)) {
      // A mark may stand before a word and may be part of it: before it first.
      const char* word = word_end(from, end, !(first.flags & mark));
      if (word != from) return with_contraction(word, end);
      if (first.flags & mark) return with_contraction(word_end(at, end, true), end);
    }
    if (*at == ' ' && from < end) {
      const Glyph second = glyph(from, end);
      if (!(second.flags & (white | number | letter))) return tail_end(others_end(from + second.bytes, end), end);
    }
    if (first.flags & white) return spaces_end<NewlineRule::before_space>(at, end);
    return tail_end(others_end(from, end), end);
  }

 private:
  // `at` if there is no word. Without `second_form` only words that end in a small letter count.
  static const char* word_end(const char* at, const char* end, bool second_form) {
    const char* next = at;
    const char* after_small = at;
    while (next < end) {
      const Glyph character = glyph(next, end);
      if (!(character.flags & capital)) {
        if (character.flags & small) return smalls_end(next + character.bytes, end);
        break;
      }
      next += character.bytes;
      if (character.flags & small) after_small = next;
    }
    if (after_small != at) return after_small;
    return second_form ? next : at;
  }
  static const char* smalls_end(const char* at, const char* end) { return letters_end<small>(at, end); }
  static const char* with_contraction(const char* at, const char* end) {
    return contractions && at < end && *at == '\'' ? contraction_end<true>(at, end) : at;
  }
  static const char* tail_end(const char* at, const char* end) {
    while (at < end && (is_newline(*at) || *at == '/')) ++at;
    return at;
  }
};

// Three splits in a row: \p{N}{1,3}, then Chinese and kana, then an expression that sees what lies between those as
// texts of their own, and does not match everything: the text between two matches is a word too.
struct DeepSeekScanner {
  static const char* next(const char* at, const char* end) {
    const bool in_han = is_han_or_kana(at, end);
    const char* from = at;
    while (true) {
      const char* match = match_end(from, end);
      if (from == at && match != at) return match;
      if (match != from) return from;  // the text before the match
      const Glyph unmatched = glyph(from, end);
      from += unmatched.bytes;
      if (from == end || ends_part(from, end, in_han)) return from;
    }
  }

 private:
  static bool is_han_or_kana(const char* at, const char* end) {
    if (static_cast<unsigned char>(*at) < 0xe3) return false;
    const char32_t code = front_character(at, static_cast<std::size_t>(end - at)).code;
    return (code >= 0x4e00 && code <= 0x9fa5) || (code >= 0x3040 && code <= 0x30ff);
  }
  // Whether the first two splits cut before this character, where those before it are (or are not) Chinese or kana.
  static bool ends_part(const char* at, const char* end, bool in_han) {
    return (glyph(at, end).flags & number) || is_han_or_kana(at, end) != in_han;
  }
  template <class Wanted>
  static const char* part_run_end(const char* at, const char* end, bool in_han, Wanted wanted) {
    while (at < end) {
      const Glyph next = glyph(at, end);
      if (!wanted(next.flags) || is_han_or_kana(at, end) != in_han) break;
      at += next.bytes;
    }
    return at;
  }
  // `at` if nothing matches here.
  static const char* match_end(const char* at, const char* end) {
    const Glyph first = glyph(at, end);
    const char* from = at + first.bytes;
    const bool in_han = is_han_or_kana(at, end);
    const auto letters = [&](const char* p) {
      if (in_han) return part_run_end(p, end, true, [](Flags flags) { return (flags & (letter | mark)) != 0; });
      return letters_end<letter | mark>(p, end, [&](const char* next) { return !is_han_or_kana(next, end); });
    };
    if (first.flags & number) return few_numbers_end(from, end, 2);
    if (first.flags & (letter | mark)) return letters(from);
    if (first.flags & sign) {
      const bool ascii = static_cast<unsigned char>(*at) < 0x80;
      if (ascii && from < end && is_ascii_letter(*from)) return ascii_letters_end(from, end);
      return signs_end(from, end, in_han);
    }
    const bool alone = from == end || ends_part(from, end, in_han);
    if (!alone && !is_newline(*at)) {
      const Flags second = glyph(from, end).flags;
      if (second & (letter | mark)) return letters(from);
      if (*at == ' ' && (second & sign)) return signs_end(from, end, in_han);
    }
    if (!(first.flags & white)) return at;
    return spaces_end<NewlineRule::before_space>(at, end, [&](const char* p) { return ends_part(p, end, in_han); });
  }
  static bool is_ascii_letter(char c) { return (ascii_flags[static_cast<unsigned char>(c)] & letter) != 0; }
  static const char* ascii_letters_end(const char* at, const char* end) {
    return letters_end<letter>(at, end, [](const char*) { return false; });
  }
  // [\p{P}\p{S}]+[\r\n]*
  static const char* signs_end(const char* at, const char* end, bool in_han) {
    at = part_run_end(at, end, in_han, [](Flags flags) { return (flags & sign) != 0; });
    return in_han ? at : newlines_end(at, end);
  }
};

// Calls the function with a scanner of the pattern.
template <class Function>
auto with_scanner(SplitPattern pattern, Function&& function) {
  switch (pattern) {
    case SplitPattern::gpt2: return function(Gpt2Scanner{});
    case SplitPattern::llama3: return function(Llama3Scanner<true, 3, NewlineRule::before_space>{});
    case SplitPattern::cl100k: return function(Llama3Scanner<true, 3, NewlineRule::after_end_of_text>{});
    case SplitPattern::qwen2: return function(Llama3Scanner<true, 1, NewlineRule::before_space>{});
    case SplitPattern::tiktoken_v1: return function(Llama3Scanner<false, 1, NewlineRule::before_space>{});
    case SplitPattern::o200k: return function(CaseScanner<true, 3>{});
    case SplitPattern::tekken: return function(CaseScanner<false, 1>{});
    case SplitPattern::deepseek_v3: return function(DeepSeekScanner{});
  }
  fail("a split pattern without a scanner");
}

}  // namespace tera::split
