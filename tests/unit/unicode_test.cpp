#include "tera/tokenizer/unicode/unicode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <string>

#include "tera/tokenizer/huggingface/normalize.h"
#include "tera/tokenizer/unicode/unicode_grapheme.h"

namespace tera::test {
namespace {

template <class Test>
int count_of(Test test) {
  int count = 0;
  for (char32_t c = 0; c < unicode::limit; ++c) count += test(c);
  return count;
}

// The numbers are those of the `tokenizers` package, asked about every code point.
TEST(Unicode, ClassesHaveTheSizesOfTheReference) {
  EXPECT_EQ(count_of(is_letter), 141028);
  EXPECT_EQ(count_of(is_number), 1911);
  EXPECT_EQ(count_of(is_mark), 2501);
  EXPECT_EQ(count_of(is_punctuation), 855);
  EXPECT_EQ(count_of(is_symbol), 8514);
  EXPECT_EQ(count_of(is_white_space), 25);
  EXPECT_EQ(count_of(is_numeric), 1924);
  EXPECT_EQ(count_of(is_bert_punctuation), 726);
  EXPECT_EQ(count_of(is_word_character), 144667);
  EXPECT_EQ(count_of(is_combining_mark), 2097);
  EXPECT_EQ(count_of(is_bert_accent), 1567);
  EXPECT_EQ(count_of([](char32_t c) { return category(c) == Category::lu; }), 1858);
  EXPECT_EQ(count_of([](char32_t c) { return category(c) == Category::cn; }), 819533);
  EXPECT_EQ(count_of([](char32_t c) { return lower_case(c) != c; }), 1487);
}

TEST(Unicode, VersionsDifferByPurpose) {
  EXPECT_TRUE(is_letter(0x105c0));   // new in 16
  EXPECT_FALSE(is_letter(0x16ea0));  // new in 17
  EXPECT_EQ(lower_case(0x16ea0), 0x16ebbU);
  EXPECT_FALSE(is_number(0x11de0));  // new in 17
  EXPECT_TRUE(is_numeric(0x11de0));
  EXPECT_FALSE(is_bert_punctuation(0x2e43));  // new in 9
  EXPECT_TRUE(is_punctuation(0x2e43));
  EXPECT_TRUE(is_bert_punctuation('$'));
  EXPECT_FALSE(is_punctuation('$'));
  EXPECT_TRUE(is_bert_control(0xfffd));
  EXPECT_FALSE(is_bert_control('\n'));
}

TEST(Unicode, NothingIsWrongBeyondTheLastCodePoint) {
  EXPECT_EQ(category(0x110000), Category::cn);
  EXPECT_EQ(category(0xffffffff), Category::cn);
  EXPECT_EQ(lower_case(0xffffffff), 0xffffffffU);
  EXPECT_FALSE(is_combining_mark(0xffffffff));
}

TEST(Unicode, CharactersGoToUtf8AndBack) {
  for (char32_t c = 0; c < unicode::limit; ++c) {
    if (c >= 0xd800 && c < 0xe000) continue;
    std::string text;
    append_utf8(text, c);
    ASSERT_EQ(front_character(text).code, c);
    ASSERT_EQ(front_character(text).bytes, text.size());
    ASSERT_EQ(back_character(text).code, c);
    ASSERT_EQ(back_character("x" + text).bytes, text.size());
  }
}

TEST(Unicode, BrokenUtf8IsReadByteByByteAndNeverPastItsEnd) {
  for (const std::string_view text :
       {"\xff", "\x80", "\xc3", "\xe2\x82", "\xf0\x9f\x98", "\xf4\xff\xff\xff", "\xc0\x80"}) {
    EXPECT_EQ(front_character(text).code, unicode::replacement) << text;
    EXPECT_EQ(front_character(text).bytes, 1u) << text;
  }
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    std::string text(1 + random() % 9, ' ');
    std::ranges::generate(text, [&] { return static_cast<char>(random() % 2 ? random() : 0x80 | random()); });
    std::size_t at = 0;
    while (at < text.size()) at += front_character(std::string_view(text).substr(at)).bytes;
    EXPECT_EQ(at, text.size());
    EXPECT_LE(front_grapheme(text), text.size());
    EXPECT_LE(back_character(text).bytes, text.size());
    std::string folded = text;
    to_lower_case(folded);
    to_normal_form(NormalForm::nfkc, folded);
    to_normal_form(NormalForm::nfd, folded);
  }
}

TEST(Graphemes, FollowTheRulesOfUnicode) {
  const auto first = [](std::u8string_view text) {
    return front_grapheme({reinterpret_cast<const char*>(text.data()), text.size()});
  };
  EXPECT_EQ(first(u8"ab"), 1u);
  EXPECT_EQ(first(u8"\r\n"), 2u);
  EXPECT_EQ(first(u8"\n\u0301"), 1u);
  EXPECT_EQ(first(u8"e\u0301\u0323x"), 5u);
  EXPECT_EQ(first(u8"\u0600a"), 3u);                   // a prefix
  EXPECT_EQ(first(u8"\u1100\u1161\u11a8\u1100"), 9u);  // a Hangul syllable
  EXPECT_EQ(first(u8"\uac01\u1161"), 3u);
  EXPECT_EQ(first(u8"\U0001f1e9\U0001f1ea\U0001f1eb"), 8u);  // a flag, and half of the next
  EXPECT_EQ(first(u8"\U0001f468\u200d\U0001f469\u200d\U0001f467!"), 18u);
  EXPECT_EQ(first(u8"a\u200d\U0001f469"), 4u);
  EXPECT_EQ(first(u8"\u0915\u094d\u0937\u093fx"), 12u);  // a conjunct
  EXPECT_EQ(first(u8"\u0915\u0937"), 3u);
}

}  // namespace
}  // namespace tera::test
