#include "tera/tokenizer/unicode/regex_translate.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <utility>

#include "tera/tokenizer/unicode/regex_reader.h"
#include "tera/tokenizer/unicode/unicode.h"

namespace tera {
namespace {

class Translator : private RegexReader {
 public:
  using RegexReader::RegexReader;

  std::string run() {
    alternatives(0);
    if (!done()) refuse("a ')' that closes nothing");
    return std::move(out_);
  }

 private:
  struct Options {
    bool ignore_case = false;
    bool any_is_all = false;  // '.' is a line end too
  };

  void alternatives(int depth);
  void atom(int depth);
  void quantifier(std::size_t atom_start);
  void group(int depth);
  void group_body(std::string_view opening, int depth);
  bool sees_options() const;
  Options take_options();
  void escape();
  void back_reference(char32_t c);
  void literal(char32_t c);
  void set(const CodePointSet& set);
  void boundary(bool inverted);

  std::string out_;
  Options options_;
  char32_t last_literal_ = 0;  // what a case-insensitive pair of letters may start with
  int captures_ = 0;
  bool has_names_ = false;
};

// a|b|c up to the end or the ')' of the group, which stays.
void Translator::alternatives(int depth) {
  if (depth > max_nested) refuse("groups nested too deep");
  const Options outer = options_;
  std::size_t opened = 0;
  for (bool first = true; !done() && peek() != ')'; first = false) {
    if (take("|")) {
      if (opened > 0 && is_rust()) refuse("options before a '|'");
      out_ += '|';
      last_literal_ = 0;
    } else if (sees_options()) {
      const std::size_t start = out_.size();
      const Options before = std::exchange(options_, take_options());
      if (take(":")) {
        group_body("(?:", depth);
        options_ = before;
        quantifier(start);
      } else if (take(")") && !first) {  // up to the end of this group, alternatives and all
        out_ += "(?:";
        ++opened;
      }
    } else {
      atom(depth);
    }
  }
  out_.append(opened, ')');
  options_ = outer;
  last_literal_ = 0;
}

bool Translator::sees_options() const {
  constexpr std::string_view letters = "imsxaUuwWDSPLyn-";
  return sees("(?") && rest().size() > 2 && letters.find(rest()[2]) != letters.npos && !sees("(?P<");
}

// (?im-x up to ':' or ')'.
Translator::Options Translator::take_options() {
  Options found = options_;
  (void)take("(?");
  for (bool on = true; !sees(":") && !sees(")");) {
    const char32_t c = take_character();
    if (c == '-')
      on = false;
    else if (c == 'i')
      found.ignore_case = on;
    else if (c == static_cast<char32_t>(is_rust() ? 's' : 'm'))
      found.any_is_all = on;
    else
      refuse("this option");
  }
  return found;
}

void Translator::atom(int depth) {
  const std::size_t start = out_.size();
  const std::size_t from = position();
  const char32_t c = take_character();
  const char32_t before = std::exchange(last_literal_, 0);
  if (c == '(') {
    group(depth);
  } else if (c == '[') {
    go_back(from);
    set(take_bracket(depth));
  } else if (c == '\\') {
    escape();
  } else if (c == '.') {
    out_ += options_.any_is_all ? "(?s:.)" : "[^\\n]";
  } else if (c == '^') {
    out_ += is_rust() ? "\\A" : "(?m:^)";
  } else if (c == '$') {
    out_ += is_rust() ? "\\z" : "(?m:$)";
  } else if (c == '*' || c == '+' || c == '?') {
    go_back(from);
    refuse("a repetition of nothing");
  } else {
    last_literal_ = before;
    literal(c);
  }
  quantifier(start);
}

void Translator::quantifier(std::size_t atom_start) {
  if (done()) return;
  std::string count;
  bool interval = false, exact = false;
  const std::size_t from = position();
  if (take("*") || take("+") || take("?")) {
    count = since(from);
  } else if (peek() == '{') {
    const std::size_t close = rest().find('}');
    const std::string_view inside = rest().substr(1, close == std::string_view::npos ? 0 : close - 1);
    const bool numbers = !inside.empty() && inside.find_first_not_of("0123456789,") == inside.npos && inside != "," &&
                         std::ranges::count(inside, ',') <= 1 && inside.size() <= 11;
    if (!numbers) return;  // a brace as any other character
    count = fmt::format("{{{}{}}}", inside.front() == ',' ? "0" : "", inside);
    exact = inside.find(',') == inside.npos;
    interval = true;
    (void)take_until('}');
  } else {
    return;
  }
  last_literal_ = 0;
  out_ += count;
  if (take("?")) {
    if (exact && !is_rust()) refuse("'?' behind a fixed count");
    out_ += '?';
  } else if (take("+")) {
    if (interval && !is_rust()) {  // the repeated part, any number of times
      out_.insert(atom_start, "(?:");
      out_ += ")+";
    } else {
      out_ += '+';
    }
  }
  if (!done() && (peek() == '*' || peek() == '+' || peek() == '?')) refuse("a repetition of a repetition");
}

void Translator::group(int depth) {
  if (!take("?")) {
    ++captures_;
    return group_body("(", depth);
  }
  if (take("#")) return (void)take_until(')');
  for (const std::string_view kind : {":", "=", "!", ">", "<=", "<!"})
    if (take(kind)) return group_body(fmt::format("(?{}", kind), depth);
  (void)take("P");
  if (!take("<")) refuse("this kind of group");
  has_names_ = true;
  group_body(fmt::format("(?<{}>", take_until('>')), depth);
}

void Translator::group_body(std::string_view opening, int depth) {
  out_ += opening;
  alternatives(depth + 1);
  if (!take(")")) refuse("a group without end");
  out_ += ')';
}

void Translator::literal(char32_t c) {
  if (options_.ignore_case) {
    // Beyond ASCII, and where one character stands for a pair of letters, the rules differ between libraries.
    const auto folds = [&](std::string_view pair) {
      return (last_literal_ | 32) == static_cast<char32_t>(pair[0]) && (c | 32) == static_cast<char32_t>(pair[1]);
    };
    if (c >= 128) refuse("a case-insensitive character beyond ASCII");
    if (folds("ss") || folds("st") || folds("ff") || folds("fi") || folds("fl")) refuse("this case-insensitive pair");
    last_literal_ = c;
  }
  const bool bare = is_ascii_letter(c) || (c < 128 && is_digit(c));
  const std::string text =
      bare ? std::string(1, static_cast<char>(c)) : fmt::format("\\x{{{:x}}}", static_cast<std::uint32_t>(c));
  out_ += options_.ignore_case && is_ascii_letter(c) ? fmt::format("(?i:{})", text) : text;
}

void Translator::set(const CodePointSet& set) {
  if (!options_.ignore_case || set.empty()) {
    out_ += set.pattern();
    return;
  }
  if (!set.only_ascii()) refuse("a case-insensitive class beyond ASCII");
  out_ += fmt::format("(?i:{})", set.pattern());
}

void Translator::boundary(bool inverted) {
  const std::string w = word_set(false).pattern();
  out_ += inverted ? fmt::format("(?:(?<={0})(?={0})|(?<!{0})(?!{0}))", w)
                   : fmt::format("(?:(?<={0})(?!{0})|(?<!{0})(?={0}))", w);
}

void Translator::escape() {
  const char32_t c = take_character();
  CodePointSet found;
  char32_t code = 0;
  if (take_class(c, false, found)) {
    out_ += found.pattern();  // a class has all its cases, or means to tell them apart
  } else if (c == 'b' || c == 'B') {
    boundary(c == 'B');
  } else if (c == 'A' || c == 'z' || c == 'G' || (!is_rust() && (c == 'Z' || c == 'R'))) {
    out_ += fmt::format("\\{}", static_cast<char>(c));
  } else if (!is_rust() && (c == 'O' || c == 'N')) {
    out_ += c == 'O' ? "(?s:.)" : "[^\\n]";
  } else if ((c >= '1' && c <= '9') || c == 'k') {
    back_reference(c);
  } else if (take_escaped(c, code)) {
    literal(code);
  } else {
    refuse("this escape");
  }
}

void Translator::back_reference(char32_t c) {
  if (options_.ignore_case) refuse("a case-insensitive back reference");
  if (c == 'k') {
    if (!take("<")) refuse("this back reference");
    out_ += fmt::format("\\k<{}>", take_until('>'));
    return;
  }
  const int number = static_cast<int>(c - '0');
  if (number > captures_ || has_names_ || (!done() && is_digit(static_cast<unsigned char>(peek()))))
    refuse("this back reference");
  out_ += fmt::format("\\g{{{}}}", number);
}

}  // namespace

std::string translate_regex(std::string_view pattern, RegexDialect dialect, std::string_view where) {
  return Translator(pattern, dialect, where).run();
}

}  // namespace tera
