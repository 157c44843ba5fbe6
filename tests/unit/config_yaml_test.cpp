// Config files are untrusted: their content must never crash, hang or be half understood.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "tera/base/error.h"
#include "tera/config/yaml.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace tera::test {
namespace {

using Kind = YamlNode::Kind;

std::string repeat(std::string_view text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

std::string refusal(const std::string& text) {
  return message_of<UserError>([&] { parse_yaml(text, "bad.yaml"); });
}

void expect_refused(const std::string& text, std::string_view words) {
  const std::string message = refusal(text);
  EXPECT_TRUE(contains(message, "bad.yaml") && contains(message, words)) << message;
}

TEST(Yaml, KeepsLinesOrderAndQuotes) {
  const YamlNode root = parse_yaml("b: 1\na:\n  - x\n  - '2'\n\nc: {d: ~}\n", "good.yaml");
  ASSERT_EQ(root.kind, Kind::map);
  ASSERT_EQ(root.entries.size(), 3u);
  EXPECT_EQ(root.entries[0].first, "b");
  EXPECT_EQ(root.entries[0].second.text, "1");
  EXPECT_FALSE(root.entries[0].second.quoted);
  const YamlNode* list = root.find("a");
  ASSERT_TRUE(list != nullptr && list->kind == Kind::list);
  ASSERT_EQ(list->items.size(), 2u);
  EXPECT_EQ(list->items[0].line, 3);
  EXPECT_TRUE(list->items[1].quoted);
  EXPECT_EQ(list->items[1].line, 4);
  EXPECT_EQ(root.find("c")->find("d")->kind, Kind::null);
  EXPECT_EQ(root.find("z"), nullptr);
}

TEST(Yaml, ReadsEveryWayToWriteText) {
  const YamlNode root =
      parse_yaml("a: |\n  one\n  two\nb: >-\n  one\n  two\nc: \"\\x41 # no comment\"\nd: x # comment", "good.yaml");
  EXPECT_EQ(root.find("a")->text, "one\ntwo\n");
  EXPECT_EQ(root.find("b")->text, "one two");
  EXPECT_EQ(root.find("c")->text, "A # no comment");
  EXPECT_EQ(root.find("d")->text, "x");
}

TEST(Yaml, RefusesDuplicatedKeys) {
  expect_refused("a: 1\nb: 2\na: 3\n", "bad.yaml:3: 'a' is given twice; first in line 1");
}

TEST(Yaml, RefusesDeepNestingBeforeTheParserRecurses) {
  for (const std::string_view opening : {"[", "- ", "{a: ", "? ", "a: [", "[{b: "})
    expect_refused(repeat(opening, 50000), "");
  std::string stairs;
  for (int i = 0; i < 1000; ++i) stairs += std::string(static_cast<std::size_t>(i), ' ') + "a:\n";
  expect_refused(stairs, "nested deeper than 16 levels");
  EXPECT_EQ(parse_yaml("[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]", "deep.yaml").kind, Kind::list);  // 16 of them
  expect_refused("[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]", "nested deeper");                    // 17
}

TEST(Yaml, RefusesAnchorsAndAliases) {
  expect_refused("a: &x [*x]\n", "anchors and aliases");
  expect_refused("a: &x 1\nb: *x\n", "anchors and aliases");
  expect_refused("a: &a [l, o, l]\nb: &b [*a, *a, *a]\nc: &c [*b, *b, *b]\n", "anchors and aliases");
  expect_refused("&x a: 1\n", "anchors and aliases");
}

TEST(Yaml, RefusesTagsDocumentsAndOddKeys) {
  expect_refused("a: !!python/object:os.system x\n", "tags");
  expect_refused("a: 1\n---\nb: 2\n", "second document");
  expect_refused("? [a, b]\n: 1\n", "where a key should be");
  expect_refused("{: 1}\n", "key");
}

TEST(Yaml, RefusesWhatIsNoText) {
  expect_refused("a: \xff\n", "bad.yaml:1: not UTF-8");
  expect_refused("a: 1\nb: \xc0\x80\n", "bad.yaml:2: not UTF-8");  // overlong
  expect_refused("a: \xed\xa0\x80\n", "not UTF-8");                // surrogate
  expect_refused("a: \xf4\x90\x80\x80\n", "not UTF-8");            // past U+10FFFF
  expect_refused("a: \xe2\x82\n", "not UTF-8");                    // cut short
  expect_refused(std::string("a: \0b\n", 6), "control character 0x00");
  expect_refused("a: \x1b[31m\n", "control character 0x1b");
  EXPECT_EQ(parse_yaml("a: \xe2\x82\xac\xf0\x9f\x99\x82\n", "good.yaml").find("a")->text,
            "\xe2\x82\xac\xf0\x9f\x99\x82");
}

TEST(Yaml, RefusesBrokenSyntaxWithItsLine) {
  expect_refused("a: 1\nb: [1, 2\n", "not valid YAML");
  expect_refused("a: 1\n\tb: 2\n", "not valid YAML");
  expect_refused("a: 1\nb: 'x\nc: 2\n", "bad.yaml:2: a quote is opened here and never closed");
  expect_refused("a: \"x", "never closed");
  expect_refused("a: b: c\n", "bad.yaml:1: not valid YAML");
}

TEST(Yaml, RefusesTooMuch) {
  expect_refused(std::string(max_yaml_bytes + 1, '#'), "longer than 1048576 bytes");
  std::string keys;
  for (int i = 0; i < 2000; ++i) keys += fmt::format("k{}: 1\n", i);
  expect_refused(keys, "more than 1000 keys");
}

TEST(YamlFile, RefusesWhatIsNoFile) {
  const TempFolder folder;
  const auto refused = [&](const std::string& path) { return message_of<UserError>([&] { read_yaml_file(path); }); };
  EXPECT_TRUE(contains(refused((folder / "none.yaml").string()), "none.yaml"));
  EXPECT_TRUE(contains(refused(folder.path().string()), "folder"));
  EXPECT_TRUE(contains(refused(folder.write("empty.yaml", "").string()), "empty"));
  EXPECT_TRUE(contains(refused(folder.write("comment.yaml", "# nothing\n").string()), "empty"));
  EXPECT_TRUE(contains(refused(folder.write("big.yaml", std::string(max_yaml_bytes + 1, '#')).string()), "bytes"));
}

// Damaged copies of a real config: each is read or refused as the user's mistake, nothing else.
TEST(Yaml, SurvivesDamage) {
  const std::string config =
      "extends: a.yaml\nmodel:\n  arch: llama\n  freeze: [a, 'b', \"c\"]\n"
      "  rope_scaling: {type: yarn, factor: 4.0}\ntrain:\n  seed: 1\n  # note\n";
  const std::string alphabet = "{}[]:,-?&*!|>'\"%@`# \n\tax0.~<=\\";
  std::mt19937 random(7);
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string text = config;
    for (int edits = 1 + static_cast<int>(random() % 6); edits > 0; --edits) {
      const std::size_t at = random() % text.size();
      const char c = alphabet[random() % alphabet.size()];
      if (random() % 3 == 0) {
        text.erase(at, 1 + random() % 5);
      } else if (random() % 2 == 0) {
        text[at] = c;
      } else {
        text.insert(at, 1 + random() % 3, c);
      }
      if (text.empty()) text.push_back('a');
    }
    try {
      parse_yaml(text, "damaged.yaml");
    } catch (const UserError& error) {
      EXPECT_TRUE(contains(error.what(), "damaged.yaml")) << error.what();
      ++refused;
    }
  }
  EXPECT_GT(refused, 500);
}

}  // namespace
}  // namespace tera::test
