#pragma once
// Regular expressions of tokenizers, matched by PCRE2.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tera/tokenizer/unicode/regex_translate.h"

namespace tera {

// A span of a text, and whether a pattern matched it.
struct MatchSpan {
  std::uint32_t begin, end;
  bool is_match;
};

class Regex {
 public:
  // `where` names file and field in messages.
  Regex(std::string_view pattern, RegexDialect dialect, std::string where);
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  // Appends spans that cover `text`: matches and the text between them, in order. Matches may be empty, other spans are
  // not. Thread-safe. A UserError if the pattern needs too many steps.
  void find_all(std::string_view text, std::vector<MatchSpan>& spans) const;

 private:
  struct Compiled;
  std::string pattern_, where_;
  std::unique_ptr<const Compiled> compiled_;
};

// Appends the spans of all occurrences of a plain text. An empty one matches between all characters, as an empty
// pattern does.
void find_all(std::string_view needle, std::string_view text, std::vector<MatchSpan>& spans);

}  // namespace tera
