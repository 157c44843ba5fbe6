#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>

#include "tera/base/glob.h"

namespace tera {
namespace {

TEST(Glob, PlainTextMatchesItselfOnly) {
  EXPECT_TRUE(matches_glob("lm_head.weight", "lm_head.weight"));
  EXPECT_FALSE(matches_glob("lm_head.weight", "lm_head.weigh"));
  EXPECT_FALSE(matches_glob("lm_head.weigh", "lm_head.weight"));
  EXPECT_TRUE(matches_glob("", ""));
  EXPECT_FALSE(matches_glob("", "a"));
}

TEST(Glob, StarIsAnyRunAndQuestionMarkAnyOne) {
  EXPECT_TRUE(matches_glob("*", ""));
  EXPECT_TRUE(matches_glob("*.weight", "model.layers.0.mlp.down_proj.weight"));
  EXPECT_TRUE(matches_glob("model.layers.?.mlp.*", "model.layers.7.mlp.up_proj.weight"));
  EXPECT_FALSE(matches_glob("model.layers.?.mlp.*", "model.layers.17.mlp.up_proj.weight"));
  EXPECT_FALSE(matches_glob("?", ""));
  EXPECT_TRUE(matches_glob("a*b*c", "a1b2b3c"));  // the first b is not the one
  EXPECT_FALSE(matches_glob("a*b*c", "a1b2b3"));
  EXPECT_TRUE(matches_glob("**", "x"));
}

TEST(Glob, OtherSignsArePlain) {
  EXPECT_TRUE(matches_glob("a.b", "a.b"));
  EXPECT_FALSE(matches_glob("a.b", "axb"));
  EXPECT_FALSE(matches_glob("[ab]", "a"));
}

// The definition, as a recursion, on every short pattern and text over a small alphabet.
TEST(Glob, AgreesWithTheDefinition) {
  const std::function<bool(std::string_view, std::string_view)> matches = [&](std::string_view p, std::string_view t) {
    if (p.empty()) return t.empty();
    if (p[0] == '*') return matches(p.substr(1), t) || (!t.empty() && matches(p, t.substr(1)));
    return !t.empty() && (p[0] == '?' || p[0] == t[0]) && matches(p.substr(1), t.substr(1));
  };
  std::mt19937 random(1);
  const auto word = [&](std::string_view letters) {
    std::string out(random() % 7, ' ');
    for (char& c : out) c = letters[random() % letters.size()];
    return out;
  };
  int matched = 0;
  for (int i = 0; i < 20000; ++i) {
    const std::string pattern = word("ab*?"), text = word("ab");
    matched += matches(pattern, text) ? 1 : 0;
    ASSERT_EQ(matches_glob(pattern, text), matches(pattern, text)) << pattern << " on " << text;
  }
  EXPECT_GT(matched, 1000);
}

}  // namespace
}  // namespace tera
