#include "tera/tokenizer/unicode/regex_reader.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "tera/base/utf8.h"
#include "tera/tokenizer/unicode/unicode.h"

namespace tera {
namespace {

CodePointSet inverted(CodePointSet set) {
  set.invert();
  return set;
}

}  // namespace

RegexReader::RegexReader(std::string_view pattern, RegexDialect dialect, std::string_view where)
    : text_(pattern), dialect_(dialect), where_(where) {
  if (valid_utf8_prefix(text_) != text_.size()) refuse("bytes that are no UTF-8");
}

void RegexReader::refuse(std::string_view what) const {
  fail_user("{}: the regular expression '{:.200}' has {} before byte {}, which tera does not support", where_, text_,
            what, at_);
}

bool RegexReader::take(std::string_view what) {
  if (!sees(what)) return false;
  at_ += what.size();
  return true;
}

std::string_view RegexReader::take_until(char end) {
  const std::size_t found = text_.find(end, at_);
  if (found == text_.npos) refuse(fmt::format("no '{}'", end));
  const std::string_view taken = text_.substr(at_, found - at_);
  at_ = found + 1;
  return taken;
}

char32_t RegexReader::take_character() {
  if (done()) refuse("an end too early");
  const Utf8Character c = front_character(rest());
  at_ += c.bytes;
  return c.code;
}

// \s and the like.
bool RegexReader::take_class(char32_t letter, bool in_bracket, CodePointSet& found) {
  if (letter == 's' || letter == 'S') {
    found = *property_set("space");
  } else if (letter == 'd' || letter == 'D') {
    found = *property_set("Nd");
  } else if (letter == 'w' || letter == 'W') {
    found = word_set(in_bracket);
  } else if ((letter == 'h' || letter == 'H') && !is_rust()) {
    found.add('0', '9');
    found.add('a', 'f');
    found.add('A', 'F');
  } else if (letter == 'p' || letter == 'P') {
    found = take_property(letter == 'P');
    return true;
  } else {
    return false;
  }
  if (letter < 'a') found.invert();
  return true;
}

// Oniguruma, outside of brackets, classifies the six numbers of Latin-1 by their names, not by their category.
CodePointSet RegexReader::word_set(bool in_bracket) const {
  const bool joiners = is_rust();
  CodePointSet set = CodePointSet::where(
      [=](char32_t c) { return is_word_character(c) && (joiners || (c != 0x200c && c != 0x200d)); });
  if (!is_rust() && !in_bracket)
    for (const char32_t c : {0xb2, 0xb3, 0xb9, 0xbc, 0xbd, 0xbe}) set.add(c, c);
  return set;
}

CodePointSet RegexReader::take_property(bool negated) {
  std::string_view name;
  if (take("{")) {
    name = take_until('}');
  } else if (is_rust() && !done()) {
    name = text_.substr(at_++, 1);
  } else {
    refuse("a property without braces");
  }
  if (name.starts_with('^')) {
    name.remove_prefix(1);
    negated = !negated;
  }
  std::optional<CodePointSet> found = property_set(name);
  if (!found) refuse(fmt::format("the property '{:.40}'", name));
  if (negated) found->invert();
  return *std::move(found);
}

bool RegexReader::take_escaped(char32_t letter, char32_t& code) {
  constexpr std::string_view letters = "tnrfvae", codes = "\t\n\r\f\v\a\x1b";
  if (letter < 128 && letters.find(static_cast<char>(letter)) != letters.npos) {
    code = static_cast<char32_t>(codes[letters.find(static_cast<char>(letter))]);
  } else if (letter == 'x') {
    const bool braced = take("{");
    code = braced ? take_hex(1, 8) : take_hex(2, 2);
    if (braced && !take("}")) refuse("a code point without end");
  } else if (letter == 'u') {
    code = take_hex(4, 4);
  } else if (letter == '0') {
    if (!done() && is_digit(peek())) refuse("an octal code");
    code = 0;
  } else if (letter < 128 && (is_ascii_letter(letter) || is_digit(static_cast<char>(letter)))) {
    return false;
  } else {
    code = letter;
  }
  if (code >= unicode::limit || (code >= 0xd800 && code < 0xe000)) refuse("a code point that is none");
  return true;
}

char32_t RegexReader::take_hex(std::size_t min_digits, std::size_t max_digits) {
  std::uint32_t value = 0;
  const char* const first = text_.data() + at_;
  const char* const last = first + std::min(max_digits, text_.size() - at_);
  const auto [end, error] = std::from_chars(first, last, value, 16);
  if (error != std::errc() || static_cast<std::size_t>(end - first) < min_digits) refuse("a wrong hexadecimal number");
  at_ += static_cast<std::size_t>(end - first);
  return value;
}

// [[:alpha:]], at its second bracket.
CodePointSet RegexReader::take_posix_class() {
  const std::size_t end = text_.find(":]", at_);
  std::string_view name = text_.substr(at_ + 2, std::min(end, text_.size()) - std::min(at_ + 2, text_.size()));
  const bool negated = name.starts_with('^');
  if (negated) name.remove_prefix(1);
  constexpr std::array<std::string_view, 6> known = {"alpha", "digit", "alnum", "upper", "lower", "space"};
  if (end == text_.npos || std::ranges::find(known, name) == known.end()) refuse("this class in brackets");
  at_ = end + 2;
  CodePointSet found = *property_set(name);
  return negated ? inverted(std::move(found)) : found;
}

// [a-z&&[^x]\\s]
CodePointSet RegexReader::take_bracket(int depth) {
  if (depth > max_nested) refuse("brackets nested too deep");
  ++at_;
  const bool negated = take("^");
  CodePointSet before, part;  // before: the set in front of "&&"
  before.invert();
  for (bool first = true; first || !sees("]"); first = false) {
    if (done()) refuse("a bracket without end");
    if (sees("[:")) {
      part.add(take_posix_class());
    } else if (peek() == '[') {
      part.add(take_bracket(depth + 1));
    } else if (take("&&")) {
      before.keep(std::exchange(part, CodePointSet()));
    } else {
      take_member(part, first);
    }
  }
  ++at_;
  part.keep(before);
  return negated ? inverted(std::move(part)) : part;
}

// One character, a range of them, or a class by its escape.
void RegexReader::take_member(CodePointSet& part, bool first) {
  char32_t low = take_character();
  if (low == '\\') {
    const char32_t letter = take_character();
    CodePointSet found;
    if (take_class(letter, true, found)) return part.add(found);
    if (letter == 'b')
      low = 8;
    else if (!take_escaped(letter, low))
      refuse("this escape");
  } else if (low == '-' && !first && !sees("]")) {
    refuse("a '-' that is no range");
  }
  const bool range = sees("-") && !sees("-]");
  const char32_t high = range ? take_range_end() : low;
  if (high < low) refuse("an empty range");
  part.add(low, high);
}

char32_t RegexReader::take_range_end() {
  ++at_;
  char32_t high = take_character();
  if (high == '\\' && take_escaped(take_character(), high)) return high;
  if (high == '[' || high == '\\') refuse("a class as the end of a range");
  return high;
}

}  // namespace tera
