#include "tera/tokenizer/split_pattern.h"

#include <gtest/gtest.h>

#include <array>
#include <random>

#include "tera/tokenizer/unicode/regex_split.h"
#include "tera/tokenizer/unicode/unicode.h"

namespace tera {
namespace {

using Words = std::vector<std::string>;

Words cut(SplitPattern pattern, std::string_view text) {
  Words words;
  while (!text.empty()) {
    const std::size_t size = first_word_bytes(pattern, text);
    if (size == 0 || size > text.size()) return {"a word of no size or too much"};
    words.emplace_back(text.substr(0, size));
    text.remove_prefix(size);
  }
  return words;
}

// cut() by the regular expressions, through PCRE2.
class Reference {
 public:
  explicit Reference(const std::vector<std::string>& regexes) {
    for (const std::string& regex : regexes)
      splits_.push_back(make_regex_split(Regex(regex, RegexDialect::oniguruma, "test"), {}));
  }
  Words cut(const std::string& text) const {
    PieceText pieces{text, {{0, static_cast<std::uint32_t>(text.size())}}};
    for (const auto& split : splits_) split->apply(pieces);
    Words words;
    for (const auto [begin, end] : pieces.pieces) words.push_back(text.substr(begin, end - begin));
    return words;
  }

 private:
  std::vector<std::unique_ptr<PreTokenizer>> splits_;
};

std::string utf8(char32_t code) {
  std::string text;
  append_utf8(text, code);
  return text;
}

// Strings of few kinds of characters side by side, which is where patterns differ.
std::string awkward_text(std::mt19937& random) {
  static const std::vector<std::string> parts{"a",          "b",
                                              "Z",          "word",
                                              "Word",       "WORD",
                                              "s",          "S",
                                              "t",          "re",
                                              "RE",         "ve",
                                              "ll",         "LL",
                                              "d",          "m",
                                              "'",          "''",
                                              " ",          "  ",
                                              "\n",         "\r",
                                              "\r\n",       "\t",
                                              "\v",         "1",
                                              "22",         "4567",
                                              ".",          "!",
                                              "/",          "//",
                                              "_",          "-",
                                              "é",          "É",
                                              "ß",          "ǅ",
                                              "ʰ",          "ª",
                                              "я",          "Я",
                                              "漢",         "字",
                                              "ひ",         "カ",
                                              "・",         "゛",
                                              "\u3040",     "\u3097",
                                              "龥",         "龦",
                                              "한",         "\u0300",
                                              "\u0301",     "\u00a0",
                                              "\u0085",     "\u2028",
                                              "\u3000",     "²",
                                              "½",          "٣",
                                              "Ⅷ",          "𝟘",
                                              "😀",          "\u200d",
                                              "\u200b",     std::string(1, '\0'),
                                              "\x01",       "\x7f",
                                              "\ue000",     "\u0378",
                                              "ſ",          "K",
                                              "\u1c89",     "\U00010d50",
                                              "\U0002ebf0", "abcdefghijklmnopqrstuvwxyz",
                                              "……",         "’s",
                                              "€",          "$",
                                              "+",          "<|x|>"};
  std::string text;
  for (std::size_t count = 1 + random() % 12; count > 0; --count) {
    const auto code = static_cast<char32_t>(random() % 2 == 0 ? random() % 0x3000 : 0xe000 + random() % 0x102000);
    text += random() % 20 == 0 ? utf8(code) : parts[random() % parts.size()];
  }
  return text;
}

const std::vector<std::string> deepseek_regexes{
    R"(\p{N}{1,3})", "[一-龥\u3040-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
    "?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"};

void expect_same(SplitPattern pattern, const std::vector<std::string>& regexes) {
  std::mt19937 random(4);
  const Reference reference(regexes);
  for (int i = 0; i < 8000; ++i) {
    const std::string text = awkward_text(random);
    ASSERT_EQ(cut(pattern, text), reference.cut(text)) << text;
  }
}

TEST(SplitPattern, scanners_cut_like_their_expressions) {
  for (const SplitPattern pattern : {SplitPattern::gpt2, SplitPattern::llama3, SplitPattern::qwen2, SplitPattern::o200k,
                                     SplitPattern::tekken, SplitPattern::tiktoken_v1})
    expect_same(pattern, {std::string(regex_of(pattern))});
}

TEST(SplitPattern, three_splits_in_a_row_are_one_scanner) { expect_same(SplitPattern::deepseek_v3, deepseek_regexes); }

TEST(SplitPattern, known_by_their_spelling_only) {
  EXPECT_EQ(known_split_pattern(deepseek_regexes), SplitPattern::deepseek_v3);
  std::vector<std::string> two(deepseek_regexes.begin(), deepseek_regexes.begin() + 2);
  EXPECT_EQ(known_split_pattern(two), std::nullopt);
  EXPECT_EQ(known_split_pattern(R"(\s+|\S+)", RegexDialect::rust), std::nullopt);
  EXPECT_EQ(known_split_pattern("", RegexDialect::rust), std::nullopt);
  for (const SplitPattern pattern : {SplitPattern::gpt2, SplitPattern::cl100k, SplitPattern::tekken})
    EXPECT_EQ(known_split_pattern(regex_of(pattern), RegexDialect::rust), pattern);
  EXPECT_EQ(known_split_pattern(regex_of(SplitPattern::llama3), RegexDialect::oniguruma), SplitPattern::llama3);
  // Its {1,3}+ means something else in tokenizer.json.
  EXPECT_EQ(known_split_pattern(regex_of(SplitPattern::cl100k), RegexDialect::oniguruma), std::nullopt);
}

TEST(SplitPattern, words_as_people_know_them) {
  EXPECT_EQ(cut(SplitPattern::gpt2, "I'll  say 12345!\n\n"), (Words{"I", "'ll", " ", " say", " 12345", "!", "\n\n"}));
  EXPECT_EQ(cut(SplitPattern::llama3, "I'LL  say 12345!\n\n x"),
            (Words{"I", "'LL", " ", " say", " ", "123", "45", "!\n\n", " x"}));
  EXPECT_EQ(cut(SplitPattern::o200k, "camelCase HTTPServer's"), (Words{"camel", "Case", " HTTPServer's"}));
  EXPECT_EQ(cut(SplitPattern::cl100k, "a\n  "), (Words{"a", "\n  "}));
  EXPECT_EQ(cut(SplitPattern::llama3, "a\n  "), (Words{"a", "\n", "  "}));
}

// Text that ends inside of a character, or is none at all, is cut somehow and never read past its end.
TEST(SplitPattern, any_bytes_are_cut_within_their_bounds) {
  std::mt19937 random(5);
  for (const SplitPattern pattern :
       {SplitPattern::gpt2, SplitPattern::llama3, SplitPattern::cl100k, SplitPattern::qwen2, SplitPattern::o200k,
        SplitPattern::tekken, SplitPattern::tiktoken_v1, SplitPattern::deepseek_v3})
    for (int i = 0; i < 2000; ++i) {
      std::vector<char> bytes(random() % 40);  // no terminator after it
      for (char& byte : bytes) byte = static_cast<char>(random() % 3 == 0 ? random() : " a'\xe3\xf0"[random() % 5]);
      const std::string_view text(bytes.data(), bytes.size());
      std::string joined;
      for (const std::string& word : cut(pattern, text)) joined += word;
      EXPECT_EQ(joined, text);
    }
}

}  // namespace
}  // namespace tera
