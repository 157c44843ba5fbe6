#include <gtest/gtest.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "tera/base/edit_distance.h"
#include "tera/base/joined.h"
#include "tera/base/utf8.h"

namespace tera::test {
namespace {

TEST(Utf8, AcceptsExactlyTheEncodingsOfCharacters) {
  EXPECT_EQ(valid_utf8_prefix(""), 0u);
  for (const std::string_view good :
       {"plain ascii, long enough", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80",
        "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"})
    EXPECT_EQ(valid_utf8_prefix(good), good.size()) << good;
  for (const std::string_view bad : {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xc2",
                                     "\xc2"
                                     "a",
                                     "\xe0\x9f\xbf", "\xe1\x80", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80",
                                     "\xf5\x80\x80\x80", "\xff", "\xf0\x90\x80"})
    for (const std::string_view before : {"", "12345678", "123456789\xc3\xa9"})
      EXPECT_EQ(valid_utf8_prefix(std::string(before) + std::string(bad)), before.size()) << bad;
}

TEST(Utf8, MendsEachBrokenPartOnce) {
  EXPECT_EQ(mend_utf8("a\xff"
                      "b"),
            "a\ufffdb");
  EXPECT_EQ(mend_utf8("\xe2\x82"), "\ufffd");  // a character cut short is one part
  EXPECT_EQ(mend_utf8("\xe2\x82\xff"), "\ufffd\ufffd");
  EXPECT_EQ(mend_utf8("\xed\xa0\x80"), "\ufffd\ufffd\ufffd");
  EXPECT_EQ(mend_utf8("\u20ac"), "\u20ac");
}

TEST(EditDistance, CountsEditsAndSwaps) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("train", "train"), 0u);
  EXPECT_EQ(edit_distance("train", "rain"), 1u);
  EXPECT_EQ(edit_distance("train", "trains"), 1u);
  EXPECT_EQ(edit_distance("train", "brain"), 1u);
  EXPECT_EQ(edit_distance("train", "trian"), 1u);  // neighbours swapped
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("ca", "abc"), 3u);  // swapped letters are not edited again
}

TEST(Joined, SeparatesEveryTwoItems) {
  EXPECT_EQ(joined(std::vector<std::string>{}, ", "), "");
  EXPECT_EQ(joined(std::vector<std::string>{"one"}, ", "), "one");
  EXPECT_EQ(joined(std::array<std::string_view, 3>{"", "two", ""}, " and "), " and two and ");
  EXPECT_EQ(joined(std::vector<int>{-1, 0, 12}, ","), "-1,0,12");
  EXPECT_EQ(joined(std::array{0.1f, 2.0f}, " "), "0.1 2");
}

}  // namespace
}  // namespace tera::test
