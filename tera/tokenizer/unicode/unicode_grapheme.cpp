#include "tera/tokenizer/unicode/unicode_grapheme.h"

#include <cstdint>

#include "tera/tokenizer/unicode/unicode.h"

namespace tera {
namespace {

// In the order of the table. Extending characters are told apart by what they do inside of an Indic conjunct.
enum class Grapheme : std::uint8_t {
  other,
  carriage_return,
  line_feed,
  control,
  extend,
  conjunct_extend,
  linker,
  joiner,
  prepend,
  spacing_mark,
  hangul_l,
  hangul_v,
  hangul_t,
  hangul_lv,
  hangul_lvt,
  regional,
  pictograph,
  consonant
};

Grapheme grapheme_class(char32_t c) {
  const std::size_t block = unicode_tables::trait_block[c >> 7];
  return static_cast<Grapheme>(
      unicode_tables::trait_records[unicode_tables::trait_values[block << 7 | (c & 127)]].grapheme);
}

bool breaks_always(Grapheme c) {
  return c == Grapheme::control || c == Grapheme::carriage_return || c == Grapheme::line_feed;
}
bool extends(Grapheme c) { return c >= Grapheme::extend && c <= Grapheme::joiner; }

// Syllables of Hangul made of several characters.
bool joins_hangul(Grapheme before, Grapheme next) {
  using enum Grapheme;
  switch (before) {
    case hangul_l: return next == hangul_l || next == hangul_v || next == hangul_lv || next == hangul_lvt;
    case hangul_lv:
    case hangul_v: return next == hangul_v || next == hangul_t;
    case hangul_lvt:
    case hangul_t: return next == hangul_t;
    default: return false;
  }
}

// State of the rules that look further back than one character.
struct History {
  bool after_pictograph = false;   // a pictograph and extending characters
  bool joined_pictograph = false;  // a pictograph, extending characters and a joiner
  bool after_consonant = false;    // a consonant, linkers and extending characters
  bool linked = false;             // a linker was among these characters
  bool odd_regional = false;       // the first half of a flag

  void add(Grapheme c) {
    using enum Grapheme;
    joined_pictograph = after_pictograph && c == joiner;
    after_pictograph = c == pictograph || (after_pictograph && extends(c) && c != joiner);
    linked = after_consonant && (c == linker || (linked && (c == conjunct_extend || c == joiner)));
    after_consonant = c == consonant || (after_consonant && (c == linker || c == conjunct_extend || c == joiner));
    odd_regional = c == regional && !odd_regional;
  }
};

bool joins(Grapheme before, Grapheme next, const History& history) {
  using enum Grapheme;
  if (before == carriage_return && next == line_feed) return true;
  if (breaks_always(before) || breaks_always(next)) return false;
  if (extends(next) || next == spacing_mark || before == prepend || joins_hangul(before, next)) return true;
  if (next == consonant) return history.linked;
  if (next == pictograph) return history.joined_pictograph;
  return next == regional && history.odd_regional;
}

}  // namespace

std::size_t front_grapheme(std::string_view text) {
  Utf8Character c = front_character(text);
  Grapheme before = grapheme_class(c.code);
  History history;
  history.add(before);
  std::size_t bytes = c.bytes;
  while (bytes < text.size()) {
    c = front_character(text.substr(bytes));
    const Grapheme next = grapheme_class(c.code);
    if (!joins(before, next, history)) break;
    history.add(next);
    before = next;
    bytes += c.bytes;
  }
  return bytes;
}

}  // namespace tera
