#pragma once
// The lexer of regular expressions: characters, escapes and classes, which regex_translate.cpp puts together.

#include <string_view>

#include "tera/base/error.h"
#include "tera/tokenizer/unicode/regex_set.h"
#include "tera/tokenizer/unicode/regex_translate.h"

namespace tera {

inline bool is_ascii_letter(char32_t c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
inline bool is_digit(char32_t c) { return c >= '0' && c <= '9'; }

class RegexReader {
 public:
  RegexReader(std::string_view pattern, RegexDialect dialect, std::string_view where);

 protected:
  static constexpr int max_nested = 100;

  [[noreturn]] void refuse(std::string_view what) const;
  bool is_rust() const { return dialect_ == RegexDialect::rust; }

  bool done() const { return at_ >= text_.size(); }
  char peek() const { return text_[at_]; }  // not when done
  bool sees(std::string_view what) const { return rest().starts_with(what); }
  bool take(std::string_view what);
  std::string_view take_until(char end);  // skips `end` too, which is not in the result
  char32_t take_character();
  std::string_view rest() const { return text_.substr(at_); }

  // After a backslash and `letter`: true if it is a class, such as \s.
  bool take_class(char32_t letter, bool in_bracket, CodePointSet& found);
  // After a backslash and `letter`: true if it is a character, such as \x41.
  bool take_escaped(char32_t letter, char32_t& code);
  CodePointSet take_bracket(int depth);  // at the opening bracket
  CodePointSet word_set(bool in_bracket) const;

  std::size_t position() const { return at_; }
  void go_back(std::size_t position) { at_ = position; }
  std::string_view since(std::size_t position) const { return text_.substr(position, at_ - position); }

 private:
  CodePointSet take_property(bool negated);
  CodePointSet take_posix_class();
  void take_member(CodePointSet& part, bool first);
  char32_t take_range_end();
  char32_t take_hex(std::size_t min_digits, std::size_t max_digits);

  std::string_view text_;
  RegexDialect dialect_;
  std::string_view where_;
  std::size_t at_ = 0;
};

}  // namespace tera
