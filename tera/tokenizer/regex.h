#pragma once
// Regular expressions of tokenizers, matched by PCRE2.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tera/tokenizer/regex_translate.h"

namespace tera {

// A part of a text, and whether a pattern matched it.
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

  // All of `text` as matches and what lies between them, in order, appended. Matches may be empty, the rest is not.
  // From any number of threads. A UserError if the pattern needs too many steps.
  void find_all(std::string_view text, std::vector<MatchSpan>& spans) const;

 private:
  struct Compiled;
  std::string pattern_, where_;
  std::unique_ptr<const Compiled> compiled_;
};

// The same for all places of a plain text. An empty one is everywhere between characters, as an empty pattern is.
void find_all(std::string_view needle, std::string_view text, std::vector<MatchSpan>& spans);

}  // namespace tera
