#include <array>

#include "tera/base/utf8.h"
#include "tera/tokenizer/huggingface/normalize.h"
#include "tera/tokenizer/huggingface/normalize_steps.h"
#include "tera/tokenizer/unicode/unicode.h"

namespace tera {
namespace {

bool is_ascii(char c) { return static_cast<unsigned char>(c) < 128; }

// ASCII is mapped byte by byte through a table. Runs of other characters pass all steps, one after the other.
class BertNormalizer final : public Normalizer {
 public:
  explicit BertNormalizer(const BertNormalizerOptions& options) : options_(options) {
    for (std::size_t c = 0; c < 128; ++c) {
      char to = static_cast<char>(c);
      if (options_.clean_text && is_white_space(static_cast<char32_t>(c))) to = ' ';
      if (options_.lowercase && to >= 'A' && to <= 'Z') to = static_cast<char>(to + 32);
      to_[c] = to;
      kept_[c] = !(options_.clean_text && is_bert_control(static_cast<char32_t>(c)));
    }
  }

 private:
  std::size_t rewrite(std::string& text, std::size_t start) const override {
    const std::size_t after = start == 0 ? 0 : start_of(text, start);
    normalize(text);
    return after;
  }

  void normalize(std::string& text) const {
    std::size_t from = 0, to = 0;
    for (; from < text.size() && is_ascii(text[from]); ++from) {
      const auto c = static_cast<unsigned char>(text[from]);
      text[to] = to_[c];
      to += kept_[c];
    }
    if (from == text.size()) return text.resize(to);
    std::string out(text, 0, to), run;
    out.reserve(text.size() + text.size() / 8);
    for (std::string_view rest = std::string_view(text).substr(from); !rest.empty();) {
      if (is_ascii(rest[0])) {
        const std::size_t plain = ascii_prefix(rest);
        append_ascii(rest.substr(0, plain), out);
        rest.remove_prefix(plain);
      } else {
        rest.remove_prefix(take_run(rest, run));
        rewrite_run(run);
        out += run;
      }
    }
    text = std::move(out);
  }

  // The front, with all characters that may interact with it, step by step.
  std::size_t start_of(std::string_view text, std::size_t start) const {
    std::string run;
    take_run(text.substr(0, start), run, start);
    const std::size_t front = run.size();
    std::size_t end = start;
    while (end < text.size() && (!is_ascii(text[end]) || !kept_[static_cast<unsigned char>(text[end])]))
      end += front_character(text.substr(end)).bytes;
    take_run(text.substr(0, end), run, end);
    start = front;
    if (options_.strip_accents) {
      start = start_in_normal_form(NormalForm::nfd, run, start);
      to_normal_form(NormalForm::nfd, run);
    }
    run.resize(start);
    if (options_.strip_accents) drop_accents(run);
    if (options_.lowercase) to_lower_case(run);
    return run.size();
  }

  void append_ascii(std::string_view text, std::string& out) const {
    const std::size_t before = out.size();
    out.resize(before + text.size());
    char* to = out.data() + before;
    for (const char c : text) {
      *to = to_[static_cast<unsigned char>(c)];
      to += kept_[static_cast<unsigned char>(c)];
    }
    out.resize(static_cast<std::size_t>(to - out.data()));
  }

  // A run of characters that may interact: those beyond ASCII, cleaned, up to the first ASCII character that stays. The
  // first `min_bytes` bytes always belong to it.
  std::size_t take_run(std::string_view text, std::string& run, std::size_t min_bytes = 0) const {
    run.clear();
    std::size_t i = 0;
    while (i < text.size() && (i < min_bytes || !is_ascii(text[i]) || !kept_[static_cast<unsigned char>(text[i])])) {
      const Utf8Character c = front_character(text.substr(i));
      const bool ideograph = options_.handle_chinese_chars && is_cjk_ideograph(c.code);
      if (ideograph) run += ' ';
      if (!options_.clean_text)
        run.append(text, i, c.bytes);
      else if (is_white_space(c.code) && !is_bert_control(c.code))
        run += ' ';
      else if (!is_bert_control(c.code))
        run.append(text, i, c.bytes);
      if (ideograph) run += ' ';
      i += c.bytes;
    }
    return i;
  }

  void rewrite_run(std::string& run) const {
    if (options_.strip_accents) {
      to_normal_form(NormalForm::nfd, run);
      drop_accents(run);
    }
    if (options_.lowercase) to_lower_case(run);
  }

  static void drop_accents(std::string& run) {
    std::size_t to = 0;
    for (std::size_t i = 0; i < run.size();) {
      const Utf8Character c = front_character(std::string_view(run).substr(i));
      if (!is_bert_accent(c.code))
        for (std::size_t k = 0; k < c.bytes; ++k) run[to++] = run[i + k];
      i += c.bytes;
    }
    run.resize(to);
  }

  BertNormalizerOptions options_;
  std::array<char, 128> to_{};
  std::array<bool, 128> kept_{};
};

}  // namespace

std::unique_ptr<Normalizer> make_bert_normalizer(const BertNormalizerOptions& options) {
  return std::make_unique<BertNormalizer>(options);
}

}  // namespace tera
