#include "tera/tokenizer/unicode/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "tera/base/error.h"
#include "tera/base/utf8.h"
#include "tera/tokenizer/unicode/unicode.h"

namespace tera {
namespace {

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct FreeData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct FreeContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

// A pattern that takes more steps than this at one position is refused.
constexpr std::uint32_t max_steps = 10'000'000;
constexpr std::uint32_t max_heap_kib = 256 * 1024;
constexpr std::size_t longest_text = std::size_t{1} << 31;

std::string message_of(int code) {
  PCRE2_UCHAR text[256] = "unknown error";
  pcre2_get_error_message(code, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

std::uint32_t narrow(std::size_t offset) { return static_cast<std::uint32_t>(offset); }

// Collects spans; an empty match right after another match does not count.
class SpanWriter {
 public:
  SpanWriter(std::string_view text, std::vector<MatchSpan>& spans) : text_(text), spans_(spans) {}

  void match(std::size_t begin, std::size_t end) {
    if (begin == end && matched_ && begin == last_) return;
    rest(begin);
    spans_.push_back({narrow(begin), narrow(end), true});
    last_ = end;
    matched_ = true;
  }
  void rest(std::size_t end) {
    if (end > last_) spans_.push_back({narrow(last_), narrow(end), false});
  }
  // Where to continue after a match.
  std::size_t next(std::size_t begin, std::size_t end) const {
    if (end > begin || end >= text_.size()) return end + (end == begin);
    return end + front_character(text_.substr(end)).bytes;
  }

 private:
  std::string_view text_;
  std::vector<MatchSpan>& spans_;
  std::size_t last_ = 0;
  bool matched_ = false;
};

}  // namespace

struct Regex::Compiled {
  std::unique_ptr<pcre2_code, FreeCode> code;
  std::unique_ptr<pcre2_match_context, FreeContext> context;
  bool fast = false;  // compiled by the JIT
};

Regex::Regex(std::string_view pattern, RegexDialect dialect, std::string where)
    : pattern_(pattern), where_(std::move(where)) {
  const std::string translated = translate_regex(pattern, dialect, where_);
  auto compiled = std::make_unique<Compiled>();
  int error = 0;
  std::size_t offset = 0;
  compiled->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(), PCRE2_UTF,
                                     &error, &offset, nullptr));
  if (!compiled->code)
    fail_user("{}: the regular expression '{:.200}' is wrong or not supported: {}", where_, pattern_,
              message_of(error));
  compiled->context.reset(pcre2_match_context_create(nullptr));
  require(compiled->context != nullptr, "no memory for a regular expression");
  pcre2_set_match_limit(compiled->context.get(), max_steps);
  pcre2_set_heap_limit(compiled->context.get(), max_heap_kib);
  compiled->fast = pcre2_jit_compile(compiled->code.get(), PCRE2_JIT_COMPLETE) == 0;
  compiled_ = std::move(compiled);
}

Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

void Regex::find_all(std::string_view text, std::vector<MatchSpan>& spans) const {
  require_user(text.size() < longest_text, "{}: a text of {} bytes is too long for a regular expression", where_,
               text.size());
  require(valid_utf8_prefix(text) == text.size(), "text for a regular expression is no UTF-8");
  const std::unique_ptr<pcre2_match_data, FreeData> data(
      pcre2_match_data_create_from_pattern(compiled_->code.get(), nullptr));
  require(data != nullptr, "no memory for a regular expression");
  const std::size_t* const offsets = pcre2_get_ovector_pointer(data.get());
  SpanWriter writer(text, spans);
  std::uint32_t options = PCRE2_NO_UTF_CHECK;
  for (std::size_t at = 0; at <= text.size();) {
    const int found = pcre2_match(compiled_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                                  options, data.get(), compiled_->context.get());
    if (found == PCRE2_ERROR_JIT_STACKLIMIT && !(options & PCRE2_NO_JIT)) {
      options |= PCRE2_NO_JIT;  // the interpreter has no such stack limit
      continue;
    }
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0)
      fail_user("{}: the regular expression '{:.200}' does not get through a text: {}", where_, pattern_,
                message_of(found));
    writer.match(offsets[0], offsets[1]);
    at = writer.next(offsets[0], offsets[1]);
  }
  writer.rest(text.size());
}

void find_all(std::string_view needle, std::string_view text, std::vector<MatchSpan>& spans) {
  SpanWriter writer(text, spans);
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t found = text.find(needle, at);
    if (found == text.npos) break;
    writer.match(found, found + needle.size());
    at = writer.next(found, found + needle.size());
  }
  writer.rest(text.size());
}

}  // namespace tera
