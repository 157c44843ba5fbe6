#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tera/base/error.h"
#include "tera/tokenizer/huggingface/normalize.h"
#include "tera/tokenizer/huggingface/normalize_steps.h"
#include "tests/unit/text_steps.h"

namespace tera::test {
namespace {

using nlohmann::json;

std::string message_for(const json& normalizer) {
  try {
    (void)make_normalizer(normalizer, "file: normalizer");
  } catch (const UserError& error) {
    return error.what();
  }
  return {};
}

TEST(Normalizer, EqualsTheReference) {
  const json& golden = text_steps()["normalizers"];
  ASSERT_GE(golden["steps"].size(), 18u);
  for (const json& step : golden["steps"]) {
    const auto normalizer = make_normalizer(step["json"], "normalizer");
    int changed = 0;
    for (std::size_t i = 0; i < golden["texts"].size(); ++i) {
      const auto before = golden["texts"][i].get<std::string>(), expected = step["results"][i].get<std::string>();
      std::string text = before;
      normalizer->apply(text);
      EXPECT_EQ(text, expected) << step["json"] << " of " << before;
      changed += before != expected;
    }
    EXPECT_GT(changed, 0) << step["json"];
  }
}

TEST(Normalizer, NormalFormsAreStableAndComposeBack) {
  for (const json& entry : text_steps()["normalizers"]["texts"]) {
    const auto text = entry.get<std::string>();
    for (const NormalForm form : {NormalForm::nfc, NormalForm::nfd, NormalForm::nfkc, NormalForm::nfkd}) {
      std::string once = text;
      to_normal_form(form, once);
      std::string twice = once;
      to_normal_form(form, twice);
      EXPECT_EQ(once, twice) << text;
    }
    std::string direct = text, around = text;
    to_normal_form(NormalForm::nfc, direct);
    to_normal_form(NormalForm::nfd, around);
    to_normal_form(NormalForm::nfc, around);
    EXPECT_EQ(direct, around) << text;
  }
}

TEST(Normalizer, ManyMarksDoNotTakeForever) {
  std::string text = "a";
  for (int i = 0; i < 200000; ++i) text += i % 2 ? "\u0301" : "\u0323";
  to_normal_form(NormalForm::nfc, text);
  EXPECT_EQ(text.substr(0, 5), "\u1ea1\u0323");
}

// Long runs are handed on in parts, which must not show.
TEST(Normalizer, LongRunsComeOutAsShortOnes) {
  const std::vector<std::string> units = {"\ufdfa", "\u1100\u1161\u11a8", "e\u0323\u0301", "e\u0301\u0323", "\uac01",
                                          "\u00e9"};
  for (const NormalForm form : {NormalForm::nfc, NormalForm::nfd, NormalForm::nfkc, NormalForm::nfkd})
    for (const std::string& unit : units) {
      std::string one = unit, many, expected;
      to_normal_form(form, one);
      for (int i = 0; i < 5000; ++i) {
        many += unit;
        expected += one;
      }
      const std::string all = many;
      to_normal_form(form, many);
      EXPECT_TRUE(many == expected) << unit;
      EXPECT_EQ(start_in_normal_form(form, all, unit.size()), one.size()) << unit;
      EXPECT_EQ(start_in_normal_form(form, all, 4000 * unit.size()), 4000 * one.size()) << unit;
    }
}

// Text dropped after a character maps to the position after that character, however long it is.
TEST(Normalizer, FirstPlaceWithMuchThatIsDropped) {
  const json drops_0x01{{"type", "Precompiled"}, {"precompiled_charsmap", "EAAAAAAIAAAAAAAAAAAAgAEFAAAA"}};
  const auto normalizer = make_normalizer(drops_0x01, "normalizer");
  for (const std::size_t count : {10U, 32'767U, 32'768U, 70'000U, 3'000'000U}) {
    const std::string before = "a" + std::string(count, '\x01') + "bc";
    for (const auto& [start, after] : {std::pair<std::size_t, std::size_t>{1, 1}, {count + 1, 1}, {count + 2, 2}}) {
      std::string text = before;
      EXPECT_EQ(normalizer->apply(text, start), after) << count;
      EXPECT_TRUE(text == "abc") << count;
    }
  }
}

TEST(Normalizer, NullIsNone) { EXPECT_EQ(make_normalizer(nullptr, "normalizer"), nullptr); }

TEST(Normalizer, NamesWhatIsWrong) {
  EXPECT_EQ(message_for({{"type", "Sparkle"}}),
            "file: normalizer.type is 'Sparkle', a normalizer that tera does not have");
  EXPECT_EQ(message_for({{"type", "NFC"}, {"more", 1}}), "file: normalizer.more is a field that tera does not know");
  EXPECT_EQ(message_for(json::array()), "file: normalizer is no JSON object");
  EXPECT_EQ(message_for({{"type", "Strip"}, {"strip_left", true}}), "file: normalizer.strip_right is missing");
  EXPECT_EQ(message_for({{"type", "Strip"}, {"strip_left", 1}, {"strip_right", true}}),
            "file: normalizer.strip_left is neither true nor false");
  EXPECT_EQ(message_for({{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}, {{"type", 3}}}}}),
            "file: normalizer.normalizers[1].type is no text");
  EXPECT_EQ(message_for({{"type", "Precompiled"}, {"precompiled_charsmap", "!"}}),
            "file: normalizer.precompiled_charsmap is no base64");
  EXPECT_EQ(message_for({{"type", "Precompiled"}, {"precompiled_charsmap", "/////w=="}}),
            "file: normalizer.precompiled_charsmap tells of 4294967295 bytes of trie and has 4 bytes in all");
  EXPECT_EQ(message_for({{"type", "Prepend"}, {"prepend", ""}}), "file: normalizer.prepend is empty");
  EXPECT_NE(message_for({{"type", "Replace"}, {"pattern", {{"Regex", "a("}}}, {"content", ""}}), "");
  EXPECT_NE(message_for({{"type", "Replace"}, {"pattern", "a"}, {"content", ""}}), "");
}

TEST(Normalizer, NestedTooDeepIsAnError) {
  json nested = {{"type", "NFC"}};
  for (int i = 0; i < 200; ++i) nested = {{"type", "Sequence"}, {"normalizers", {nested}}};
  EXPECT_NE(message_for(nested).find("nested too deep"), std::string::npos);
}

TEST(Normalizer, BrokenTablesOfReplacementsAreHarmless) {
  const json& steps = text_steps()["normalizers"]["steps"];
  for (const json& step : steps) {
    if (step["json"]["type"] != "Precompiled") continue;
    const auto map = step["json"]["precompiled_charsmap"].get<std::string>();
    for (std::size_t i = 6; i < map.size(); i += 97) {
      json broken = step["json"];
      std::string bytes = map;
      bytes[i] = bytes[i] == 'A' ? '/' : 'A';
      broken["precompiled_charsmap"] = bytes;
      try {
        const auto normalizer = make_normalizer(broken, "normalizer");
        for (const json& text : text_steps()["normalizers"]["texts"]) {
          auto copy = text.get<std::string>();
          normalizer->apply(copy);
        }
      } catch (const UserError&) {
      }
    }
  }
}

}  // namespace
}  // namespace tera::test
