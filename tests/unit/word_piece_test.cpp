#include "tera/tokenizer/wordpiece/word_piece.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "tera/base/error.h"
#include "tera/tokenizer/bpe/double_array.h"
#include "tests/unit/text_steps.h"

namespace tera::test {
namespace {

using nlohmann::json;

TEST(WordPiece, EqualsTheReference) {
  const json& golden = text_steps()["word_piece"];
  std::vector<WordPiece::Entry> vocabulary;
  for (const auto& [token, id] : golden["model"]["vocab"].items())
    vocabulary.emplace_back(token, id.get<std::int32_t>());
  const WordPiece model(vocabulary, {});
  const auto encoder = model.make_encoder();
  ASSERT_GE(golden["cases"].size(), 150u);
  for (const json& entry : golden["cases"]) {
    std::vector<std::int32_t> ids = {-7};  // what is there stays
    encoder->encode(entry[0].get<std::string>(), ids);
    auto expected = entry[1].get<std::vector<std::int32_t>>();
    expected.insert(expected.begin(), -7);
    EXPECT_EQ(ids, expected) << entry[0];
  }
}

TEST(WordPiece, NeedsNoUnknownTokenUntilItDoes) {
  const std::vector<WordPiece::Entry> vocabulary = {{"a", 4}, {"##b", 9}};
  const WordPiece model(vocabulary, {});
  std::vector<std::int32_t> ids;
  model.encode("abb", ids);
  EXPECT_EQ(ids, (std::vector<std::int32_t>{4, 9, 9}));
  EXPECT_THROW(model.encode("b", ids), UserError);
}

TEST(DoubleArray, FindsWhatAMapFinds) {
  std::mt19937 random(5);
  std::map<std::string, std::int32_t> map;
  for (int i = 0; i < 20000; ++i) {
    std::string key(1 + random() % 6, ' ');
    for (char& c : key) c = static_cast<char>(random() % 3 ? random() % 4 : random());
    map[key] = i;
  }
  std::vector<DoubleArray::Key> keys;
  for (const auto& [key, value] : map) keys.push_back({key, value});
  const DoubleArray trie(keys);
  for (const auto& [key, value] : map) EXPECT_EQ(trie.find(key), value);
  for (int i = 0; i < 50000; ++i) {
    std::string text(random() % 9, ' ');
    for (char& c : text) c = static_cast<char>(random() % 3 ? random() % 4 : random());
    std::size_t longest = 0;
    std::vector<std::pair<std::size_t, std::int32_t>> expected, found;
    for (std::size_t n = 1; n <= text.size(); ++n)
      if (const auto hit = map.find(text.substr(0, n)); hit != map.end())
        expected.emplace_back(longest = n, hit->second);
    trie.for_prefixes(text, [&](std::size_t bytes, std::int32_t value) { found.emplace_back(bytes, value); });
    ASSERT_EQ(found, expected);
    ASSERT_EQ(trie.longest_prefix(text).bytes, longest);
    const auto whole = map.find(text);
    ASSERT_EQ(trie.find(text), whole == map.end() ? DoubleArray::none : whole->second);
  }
  EXPECT_EQ(DoubleArray().find(std::string_view("\0", 1)), DoubleArray::none);
}

}  // namespace
}  // namespace tera::test
