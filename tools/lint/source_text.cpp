#include "tools/lint/source_text.h"

#include <algorithm>
#include <cctype>

namespace tera::lint {
namespace {

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// Blanks comments and literals of C++ text in one pass. Newlines are kept, so that lines keep their numbers.
class Blanker {
 public:
  explicit Blanker(std::string_view text) : text_(text), out_(text) {}

  std::string run() {
    while (at_ < text_.size()) {
      if (starts("//")) {
        blank_until(text_.find('\n', at_));
      } else if (starts("/*")) {
        blank_past("*/", 2);
      } else if (starts("R\"") && !follows_word()) {
        blank_raw_literal();
      } else if (text_[at_] == '"' || (text_[at_] == '\'' && !follows_word())) {  // 1'000 is no literal
        blank_literal();
      } else {
        ++at_;
      }
    }
    return out_;
  }

 private:
  bool starts(std::string_view mark) const { return text_.substr(at_, mark.size()) == mark; }
  bool follows_word() const { return at_ > 0 && is_word(text_[at_ - 1]); }

  void blank_until(std::size_t end) {
    for (end = std::min(end, text_.size()); at_ < end; ++at_)
      if (text_[at_] != '\n') out_[at_] = ' ';
  }

  // Blanks past the next `mark` that begins at least `skip` characters from here, or to the end.
  void blank_past(std::string_view mark, std::size_t skip) {
    const std::size_t found = text_.find(mark, at_ + skip);
    blank_until(found == std::string_view::npos ? found : found + mark.size());
  }

  // Blanks R"mark(...)mark".
  void blank_raw_literal() {
    const std::size_t paren = std::min(text_.find('(', at_), text_.size());
    const std::string end = ")" + std::string(text_.substr(at_ + 2, paren - at_ - 2)) + "\"";
    blank_past(end, paren - at_);
  }

  void blank_literal() {
    const char quote = text_[at_++];
    while (at_ < text_.size() && text_[at_] != quote && text_[at_] != '\n')
      blank_until(at_ + (text_[at_] == '\\' ? 2 : 1));
    ++at_;
  }

  std::string_view text_;
  std::string out_;
  std::size_t at_ = 0;
};

std::vector<std::string> split_lines(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

}  // namespace

SourceFile read_source(std::string path, std::string_view text) {
  return {std::move(path), split_lines(text), split_lines(Blanker(text).run())};
}

bool uses(std::string_view code, std::string_view identifier) {
  for (std::size_t at = code.find(identifier); at != std::string_view::npos; at = code.find(identifier, at + 1)) {
    const std::size_t end = at + identifier.size();
    if ((at == 0 || !is_word(code[at - 1])) && (end == code.size() || !is_word(code[end]))) return true;
  }
  return false;
}

}  // namespace tera::lint
