#include "tera/tokenizer/huggingface/normalize_steps.h"

#include <fmt/core.h>

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "tera/base/error.h"
#include "tera/base/utf8.h"
#include "tera/tokenizer/bpe/byte_level.h"
#include "tera/tokenizer/huggingface/normalize.h"
#include "tera/tokenizer/sentencepiece/precompiled.h"
#include "tera/tokenizer/unicode/regex.h"
#include "tera/tokenizer/unicode/unicode.h"

namespace tera {
namespace {

using nlohmann::json;

constexpr int max_nested = 100;

template <class Step>
class StepNormalizer final : public Normalizer {
 public:
  explicit StepNormalizer(Step step) : step_(std::move(step)) {}

 private:
  std::size_t rewrite(std::string& text, std::size_t start) const override { return step_(text, start); }
  Step step_;
};

// A step over the text: step(text, start) returns the new start.
template <class Step>
std::unique_ptr<Normalizer> make_step(Step step) {
  return std::make_unique<StepNormalizer<Step>>(std::move(step));
}

// A step that maps each character alone, so that the front is mapped as if it were the full text.
template <class Step>
std::unique_ptr<Normalizer> make_character_step(Step step) {
  return make_step([step = std::move(step)](std::string& text, std::size_t start) {
    std::string front(text, 0, start);
    step(front);
    step(text);
    return front.size();
  });
}

// Maps each character by `change`, which returns another one, or `dropped`.
constexpr char32_t dropped = unicode::limit;

template <class Change>
void change_characters(std::string& text, Change change) {
  std::string out;
  std::size_t same = 0;  // bytes of `text` that are not in `out` yet and stay
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Character c = front_character(std::string_view(text).substr(i));
    const char32_t to = change(c.code);
    if (to != c.code) {
      out.append(text, same, i - same);
      if (to != dropped) append_utf8(out, to);
      same = i + c.bytes;
    }
    i += c.bytes;
  }
  if (same == 0) return;
  out.append(text, same);
  text = std::move(out);
}

char32_t nmt_change(char32_t c) {
  if ((c >= 1 && c <= 8) || c == 0xb || (c >= 0xe && c <= 0x1f) || c == 0x7f || c == 0x8f || c == 0x9f) return dropped;
  const bool blank = c == 9 || c == 0xa || c == 0xc || c == 0xd || c == 0x1680 || (c >= 0x200b && c <= 0x200f) ||
                     c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xfeff || c == unicode::replacement;
  return blank ? U' ' : c;
}

std::size_t strip(std::string& text, std::size_t start, bool left, bool right) {
  std::string_view kept = text;
  while (left && !kept.empty() && is_white_space(front_character(kept).code))
    kept.remove_prefix(front_character(kept).bytes);
  while (right && !kept.empty() && is_white_space(back_character(kept).code))
    kept.remove_suffix(back_character(kept).bytes);
  const auto before = static_cast<std::size_t>(kept.data() - text.data());
  if (kept.size() < text.size()) text = std::string(kept);
  return std::min(start - std::min(start, before), text.size());
}

// Reads the fields of one normalizer; unknown ones are errors.
class Reader {
 public:
  Reader(const json& object, std::string where) : object_(object), where_(std::move(where)) {
    require_user(object_.is_object(), "{} is no JSON object", where_);
    type_ = text("type");
  }

  const std::string& type() const { return type_; }
  std::string field(std::string_view name) const { return fmt::format("{}.{}", where_, name); }

  void allow(std::initializer_list<std::string_view> names) const {
    for (const auto& [name, value] : object_.items())
      require_user(name == "type" || std::ranges::find(names, name) != names.end(),
                   "{} is a field that tera does not know", field(name));
  }
  const json& at(const char* name) const {
    const auto found = object_.find(name);
    require_user(found != object_.end(), "{} is missing", field(name));
    return *found;
  }
  std::string text(const char* name) const {
    require_user(at(name).is_string(), "{} is no text", field(name));
    return at(name).get<std::string>();
  }
  bool flag(const char* name) const {
    require_user(at(name).is_boolean(), "{} is neither true nor false", field(name));
    return at(name).get<bool>();
  }
  bool flag_or(const char* name, bool otherwise) const {
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? otherwise : flag(name);
  }

 private:
  const json& object_;
  std::string where_, type_;
};

std::unique_ptr<Normalizer> make_at_depth(const json& object, const std::string& where, int depth);

std::unique_ptr<Normalizer> make_sequence(const Reader& reader, int depth) {
  reader.allow({"normalizers"});
  const json& list = reader.at("normalizers");
  require_user(list.is_array(), "{} is no list", reader.field("normalizers"));
  std::vector<std::unique_ptr<Normalizer>> steps;
  for (std::size_t i = 0; i < list.size(); ++i)
    steps.push_back(make_at_depth(list[i], fmt::format("{}[{}]", reader.field("normalizers"), i), depth + 1));
  return make_step([steps = std::move(steps)](std::string& text, std::size_t start) {
    for (const auto& step : steps) start = step->apply(text, start);
    return start;
  });
}

// The replacement of a match stands for the last character of the match.
std::size_t start_in_spans(const std::vector<MatchSpan>& spans, std::size_t content, std::size_t start) {
  std::size_t size = 0;
  for (const MatchSpan span : spans) {
    if (!span.is_match) {
      if (span.begin < start) size += std::min<std::size_t>(span.end, start) - span.begin;
      if (span.end > start) break;
    } else if (span.end == 0 || span.end - 1 < start) {
      size += content;
    } else if (content > 0) {
      break;
    }
  }
  return size;
}

template <class Find>
class ReplaceNormalizer final : public Normalizer {
 public:
  ReplaceNormalizer(Find find, std::string content) : find_(std::move(find)), content_(std::move(content)) {}

 private:
  std::size_t rewrite(std::string& text, std::size_t start) const override {
    if (text.empty()) return 0;
    std::vector<MatchSpan> spans;
    find_(text, spans);
    if (spans.size() == 1 && !spans[0].is_match) return start;
    std::size_t size = 0;
    for (const MatchSpan span : spans) size += span.is_match ? content_.size() : span.end - span.begin;
    check_size(size);
    std::string out;
    out.reserve(size);
    for (const MatchSpan span : spans)
      span.is_match ? out += content_ : out.append(text, span.begin, span.end - span.begin);
    text = std::move(out);
    return start_in_spans(spans, content_.size(), start);
  }

  Find find_;
  std::string content_;
};

template <class Find>
std::unique_ptr<Normalizer> make_replace_step(Find find, std::string content) {
  return std::make_unique<ReplaceNormalizer<Find>>(std::move(find), std::move(content));
}

std::unique_ptr<Normalizer> make_replace(const Reader& reader) {
  reader.allow({"pattern", "content"});
  std::string content = reader.text("content");
  const json& pattern = reader.at("pattern");
  const std::string where = reader.field("pattern");
  const bool one = pattern.is_object() && pattern.size() == 1 && pattern.begin()->is_string();
  require_user(one && (pattern.contains("String") || pattern.contains("Regex")),
               "{} is neither {{\"String\": ..}} nor {{\"Regex\": ..}}", where);
  const auto text = pattern.begin()->get<std::string>();
  if (pattern.contains("String"))
    return make_replace_step([text](std::string_view in, std::vector<MatchSpan>& spans) { find_all(text, in, spans); },
                             std::move(content));
  return make_replace_step([regex = Regex(text, RegexDialect::oniguruma, where)](
                               std::string_view in, std::vector<MatchSpan>& spans) { regex.find_all(in, spans); },
                           std::move(content));
}

std::unique_ptr<Normalizer> make_bert(const Reader& reader) {
  reader.allow({"clean_text", "handle_chinese_chars", "strip_accents", "lowercase"});
  BertNormalizerOptions options;
  options.clean_text = reader.flag("clean_text");
  options.handle_chinese_chars = reader.flag("handle_chinese_chars");
  options.lowercase = reader.flag("lowercase");
  options.strip_accents = reader.flag_or("strip_accents", options.lowercase);
  return make_bert_normalizer(options);
}

std::unique_ptr<Normalizer> make_with_fields(const Reader& reader, int depth) {
  const std::string& type = reader.type();
  if (type == "Sequence") return make_sequence(reader, depth);
  if (type == "Replace") return make_replace(reader);
  if (type == "BertNormalizer") return make_bert(reader);
  if (type == "Prepend") {
    reader.allow({"prepend"});
    std::string prepended = reader.text("prepend");
    require_user(!prepended.empty(), "{} is empty", reader.field("prepend"));  // `tokenizers` loses characters by it
    return make_step([front = std::move(prepended)](std::string& text, std::size_t start) {
      if (!text.empty()) text.insert(0, front);
      return start == 0 ? 0 : start + front.size();
    });
  }
  if (type == "Strip") {
    reader.allow({"strip_left", "strip_right"});
    const bool left = reader.flag("strip_left"), right = reader.flag("strip_right");
    return make_step([left, right](std::string& text, std::size_t start) { return strip(text, start, left, right); });
  }
  if (type == "Precompiled") {
    reader.allow({"precompiled_charsmap"});
    return make_precompiled_normalizer(reader.text("precompiled_charsmap"), reader.field("precompiled_charsmap"));
  }
  fail_user("{} is '{:.60}', a normalizer that tera does not have", reader.field("type"), type);
}

std::unique_ptr<Normalizer> make_at_depth(const json& object, const std::string& where, int depth) {
  require_user(depth < max_nested, "{} is nested too deep", where);
  const Reader reader(object, where);
  const std::string& type = reader.type();
  constexpr std::array<std::pair<std::string_view, NormalForm>, 4> forms = {
      {{"NFC", NormalForm::nfc}, {"NFD", NormalForm::nfd}, {"NFKC", NormalForm::nfkc}, {"NFKD", NormalForm::nfkd}}};
  std::unique_ptr<Normalizer> plain;
  for (const auto& [name, form] : forms)
    if (type == name)
      plain = make_step([form = form](std::string& text, std::size_t start) {
        const std::size_t after = start_in_normal_form(form, text, start);
        to_normal_form(form, text);
        return after;
      });
  if (type == "Lowercase") plain = make_character_step([](std::string& text) { to_lower_case(text); });
  if (type == "Nmt") plain = make_character_step([](std::string& text) { change_characters(text, nmt_change); });
  if (type == "ByteLevel") plain = make_character_step([](std::string& text) { text = to_byte_level(text); });
  if (type == "StripAccents")
    plain = make_character_step([](std::string& text) {
      if (ascii_prefix(text) < text.size())
        change_characters(text, [](char32_t c) { return is_combining_mark(c) ? dropped : c; });
    });
  if (!plain) return make_with_fields(reader, depth);
  reader.allow({});
  return plain;
}

}  // namespace

std::size_t Normalizer::apply(std::string& text, std::size_t start) const {
  const std::size_t after = rewrite(text, start);
  check_size(text.size());
  return after;
}

void Normalizer::check_size(std::size_t bytes) {
  require_user(bytes <= max_bytes, "the normalizer makes more than {} bytes of a text, the most that is tokenized",
               max_bytes);
}

std::unique_ptr<Normalizer> make_normalizer(const json& object, const std::string& where) {
  return object.is_null() ? nullptr : make_at_depth(object, where, 0);
}

}  // namespace tera
