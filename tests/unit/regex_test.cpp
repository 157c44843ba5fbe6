#include "tera/tokenizer/unicode/regex.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tera/base/error.h"
#include "tera/tokenizer/unicode/regex_split.h"
#include "tests/unit/text_steps.h"

namespace tera::test {
namespace {

using nlohmann::json;

std::unique_ptr<PreTokenizer> make_split(const json& object) {
  const SplitRule rule{parse_split_behavior(object["behavior"].get<std::string>(), "behavior"),
                       object["invert"].get<bool>()};
  const auto pattern = object["pattern"].begin()->get<std::string>();
  if (object["pattern"].contains("String")) return make_text_split(pattern, rule);
  return make_regex_split(Regex(pattern, RegexDialect::oniguruma, "pattern"), rule);
}

std::string matches(std::string_view pattern, std::string_view text, RegexDialect dialect = RegexDialect::oniguruma) {
  std::vector<MatchSpan> spans;
  Regex(pattern, dialect, "test").find_all(text, spans);
  std::string shown;
  for (const MatchSpan span : spans) {
    const auto part = std::string(text.substr(span.begin, span.end - span.begin));
    shown += span.is_match ? "<" + part + ">" : part;
  }
  return shown;
}

std::string refusal(std::string_view pattern) {
  try {
    (void)Regex(pattern, RegexDialect::oniguruma, "file: field");
  } catch (const UserError& error) {
    return error.what();
  }
  return {};
}

TEST(RegexSplit, EqualsTheReference) {
  const json& golden = text_steps()["splits"];
  ASSERT_GE(golden["splits"].size(), 30u);
  for (const json& split : golden["splits"]) {
    const auto cutter = make_split(split["json"]);
    for (std::size_t i = 0; i < golden["texts"].size(); ++i) {
      PieceText text;
      text.text = golden["texts"][i].get<std::string>();
      if (!text.text.empty()) text.pieces = {{0, static_cast<std::uint32_t>(text.text.size())}};
      cutter->apply(text);
      std::vector<std::string> words;
      for (const auto piece : text.pieces) words.push_back(text.text.substr(piece.begin, piece.end - piece.begin));
      EXPECT_EQ(words, split["results"][i].get<std::vector<std::string>>()) << split["json"] << " of " << text.text;
    }
  }
}

TEST(RegexSplit, CutsOnlyInsideOfPieces) {
  PieceText text{"ab cd ef", {{1, 4}, {6, 8}}, true};
  make_text_split("c", {SplitBehavior::removed, false})->apply(text);
  ASSERT_EQ(text.pieces.size(), 2u);
  EXPECT_EQ(text.pieces[0].begin, 1u);
  EXPECT_EQ(text.pieces[0].end, 3u);
  EXPECT_EQ(text.pieces[1].begin, 6u);
}

TEST(Regex, MeansLinesInOneDialectAndTheTextInTheOther) {
  EXPECT_EQ(matches("a$", "a\na"), "<a>\n<a>");
  EXPECT_EQ(matches("a$", "a\na", RegexDialect::rust), "a\n<a>");
  EXPECT_EQ(matches("a$", "a\n", RegexDialect::rust), "a\n");
  EXPECT_EQ(matches("^b", "a\nb"), "a\n<b>");
  EXPECT_EQ(matches("^b", "a\nb", RegexDialect::rust), "a\nb");
  EXPECT_EQ(matches("(?m).", "a\n"), "<a><\n>");
  EXPECT_EQ(matches("(?s).", "a\n", RegexDialect::rust), "<a><\n>");
  EXPECT_EQ(matches("a{1,2}+", "aaaaa"), "<aaaaa>");
  EXPECT_EQ(matches("a{1,2}+", "aaaaa", RegexDialect::rust), "<aa><aa><a>");
}

TEST(Regex, ClassesAreThoseOfUnicode16) {
  EXPECT_EQ(matches("\\p{L}", "\U000105c0\U00016ea0"), "<\U000105c0>\U00016ea0");
  EXPECT_EQ(matches("\\w", "\u00b2\u200d"), "<\u00b2>\u200d");
  EXPECT_EQ(matches("[\\w]", "\u00b2\u200d"), "\u00b2\u200d");
  EXPECT_EQ(matches("\\w", "\u00b2\u200d", RegexDialect::rust), "\u00b2<\u200d>");
  EXPECT_EQ(matches("[a-c&&[^b]]|[\\x{65e5}-]", "abc-\u65e5"), "<a>b<c><-><\u65e5>");
  EXPECT_EQ(matches("(?i:k)b", "Kb\u212abKB"), "<Kb><\u212ab>KB");
  EXPECT_EQ(matches("x(?i)y|z", "xY Z xz"), "<xY> Z <xz>");
}

TEST(Regex, RefusesWhatItCannotSayExactly) {
  for (const char* pattern :
       {"(?i)ss",     "(?i)\u00e4", "(?i)[\\p{L}]", "\\X",  "\\p{Nonsense}", "(?x) a",  "a**",
        "*",          "(a",         "a)",           "[a",   "[z-a]",         "[a-\\d]", "\\",
        "(?<x>a)\\1", "\\2",        "a{3}?",        "(?<n", "\\x{110000}",   "\\ud800", "[[:blank:]]",
        "(?~a)",      "\\p",        "(?<=a+)b",     "[a&&"})
    EXPECT_EQ(refusal(pattern).find("file: field: the regular expression '"), 0u) << pattern;
  EXPECT_NE(refusal(std::string(5000, '(')), "");
  EXPECT_NE(refusal(std::string(5000, '[')), "");
  EXPECT_NE(refusal("\xff"), "");
}

TEST(Regex, APatternThatNeverEndsIsStopped) {
  EXPECT_THROW(matches("(?:(?:a+)+)+$", std::string(60, 'a') + "b"), UserError);
}

TEST(Regex, LongTextsAreNoTrouble) {
  const std::string text = std::string(200'000, 'a') + "b";
  EXPECT_EQ(matches("(?:a|b)+", text), "<" + text + ">");
}

}  // namespace
}  // namespace tera::test
