#include "tera/tokenizer/bpe/bpe_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "tera/base/error.h"
#include "tera/tokenizer/bpe/byte_level.h"
#include "tests/support/expect_error.h"
#include "tests/support/paths.h"

namespace tera {
namespace {

using Ids = std::vector<std::int32_t>;

Ids encode(WordEncoder& encoder, std::string_view text) {
  Ids ids;
  encoder.encode(text, ids);
  return ids;
}

// The definition without optimisation: bytes, then repeated merges of the first of the pairs of lowest rank.
Ids merge_naively(const BpeData& data, std::string_view word) {
  std::map<std::string, std::int32_t> ids;
  for (std::size_t id = 0; id < data.tokens.size(); ++id) ids[data.tokens[id]] = static_cast<std::int32_t>(id);
  std::map<std::pair<std::int32_t, std::int32_t>, std::size_t> ranks;
  for (std::size_t rank = 0; rank < data.merges.size(); ++rank) ranks[data.merges[rank]] = rank;
  Ids symbols;
  for (const char c : word) symbols.push_back(ids.at(to_byte_level({&c, 1})));
  while (true) {
    std::size_t best = data.merges.size(), at = 0;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto found = ranks.find({symbols[i], symbols[i + 1]});
      if (found != ranks.end() && found->second < best) best = found->second, at = i;
    }
    if (best == data.merges.size()) return symbols;
    const auto token = [&](std::size_t i) { return data.tokens[static_cast<std::size_t>(symbols[i])]; };
    symbols[at] = ids.at(token(at) + token(at + 1));
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

// The bytes and random merges of existing tokens: ranks in an order that no training gives.
BpeData random_model(std::mt19937& random, std::string_view letters, int merges) {
  BpeData data;
  data.byte_level = true;
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    data.tokens.push_back(to_byte_level({&c, 1}));
  }
  Ids parts;
  for (const char c : letters) parts.push_back(static_cast<unsigned char>(c));
  std::map<std::string, std::int32_t> known;
  while (static_cast<int>(data.merges.size()) < merges) {
    const std::int32_t left = parts[random() % parts.size()], right = parts[random() % parts.size()];
    const std::string both = data.tokens[static_cast<std::size_t>(left)] + data.tokens[static_cast<std::size_t>(right)];
    if (both.size() > 12) continue;
    data.merges.emplace_back(left, right);
    if (!known.emplace(both, 0).second) continue;
    parts.push_back(static_cast<std::int32_t>(data.tokens.size()));
    data.tokens.push_back(both);
  }
  std::shuffle(data.merges.begin(), data.merges.end(), random);
  return data;
}

std::string random_word(std::mt19937& random, std::string_view letters, std::size_t max_size) {
  std::string word;
  for (std::size_t size = 1 + random() % max_size; word.size() < size;) word += letters[random() % letters.size()];
  return word;
}

TEST(Bpe, merges_like_the_definition_whatever_the_length) {
  std::mt19937 random(1);
  for (int round = 0; round < 20; ++round) {
    const BpeData data = random_model(random, "abc", 60);
    const BpeModel model(data);
    const auto encoder = model.make_encoder();
    for (const std::size_t max_size : {4, 15, 16, 63, 64, 65, 200})
      for (int i = 0; i < 30; ++i) {
        const std::string word = random_word(random, "abc", max_size);
        EXPECT_EQ(encode(*encoder, word), merge_naively(data, word)) << word;
        EXPECT_EQ(encode(*encoder, word), merge_naively(data, word)) << "again: " << word;
      }
  }
}

TEST(Bpe, of_a_pair_listed_twice_the_last_rank_counts) {
  BpeData data;
  data.tokens = {"a", "b", "c", "ab", "bc"};
  data.merges = {{0, 1}, {1, 2}, {0, 1}};
  data.byte_level = true;
  EXPECT_EQ(encode(*BpeModel(data).make_encoder(), "abc"), (Ids{0, 4}));
}

TEST(Bpe, a_long_word_takes_no_quadratic_time) {
  BpeData data;
  data.tokens = {"a", "aa", "aaaa", "aaaaaaaa"};
  data.merges = {{0, 0}, {1, 1}, {2, 2}};
  data.byte_level = true;
  const Ids ids = encode(*BpeModel(data).make_encoder(), std::string(1'000'001, 'a'));
  ASSERT_EQ(ids.size(), 125'001U);
  EXPECT_EQ(ids.front(), 3);
  EXPECT_EQ(ids.back(), 0);
}

// More different words than the cache holds, each seen again much later.
TEST(Bpe, words_that_the_cache_forgot_give_the_same) {
  std::mt19937 random(2);
  const BpeData data = random_model(random, "0123456789", 300);
  const BpeModel model(data);
  const auto encoder = model.make_encoder();
  const auto word = [](int i) {
    return std::to_string(std::int64_t{i} * 7919) + (i % 3 == 0 ? "-long-enough-for-a-hash" : "");
  };
  std::map<int, Ids> first;
  for (int i = 0; i < 700'000; ++i) {
    const Ids ids = encode(*encoder, word(i));
    if (i % 5000 == 0) first[i] = ids;
  }
  for (const auto& [i, ids] : first) {
    EXPECT_EQ(encode(*encoder, word(i)), ids);
    EXPECT_EQ(ids, merge_naively(data, word(i)));
  }
}

TEST(Bpe, a_text_gives_what_its_words_give) {
  std::mt19937 random(3);
  const BpeData data = random_model(random, "abc d", 80);
  const BpeModel model(data);
  const auto words = model.make_encoder();
  for (const SplitPattern pattern : {SplitPattern::gpt2, SplitPattern::llama3, SplitPattern::o200k}) {
    const auto texts = model.make_text_encoder(pattern);
    for (int i = 0; i < 100; ++i) {
      const std::string text = random_word(random, "abcABC  \n'sd!1é", 400);
      Ids expected;
      for (std::string_view rest = text; !rest.empty();) {
        const std::size_t size = first_word_bytes(pattern, rest);
        words->encode(rest.substr(0, size), expected);
        rest.remove_prefix(size);
      }
      EXPECT_EQ(encode(*texts, text), expected) << text;
    }
  }
}

TEST(Bpe, merges_by_id_take_the_smallest_token) {
  BpeData data;
  data.merges_by_id = true;
  for (int byte = 0; byte < 256; ++byte) data.tokens.emplace_back(1, static_cast<char>(byte));
  for (const char* token : {"bc", "ab", "abc", "cd", "xyz", "xy"}) data.tokens.emplace_back(token);
  const BpeModel model(data);
  const auto encoder = model.make_encoder();
  EXPECT_EQ(encode(*encoder, "abcd"), (Ids{258, 'd'}));  // bc, then abc (a+bc), so that cd never comes
  EXPECT_EQ(encode(*encoder, "xyz"), (Ids{260}));        // made of xy, which has the larger id
  EXPECT_EQ(encode(*encoder, "abab"), (Ids{257, 257}));
}

TEST(Bpe, unknown_characters_fuse_or_not) {
  BpeData data;
  data.tokens = {"<unk>", "a", "b", "ab"};
  data.merges = {{1, 2}};
  data.unk = 0;
  EXPECT_EQ(encode(*BpeModel(data).make_encoder(), "xyabé"), (Ids{0, 0, 3, 0}));
  data.fuse_unk = true;
  EXPECT_EQ(encode(*BpeModel(data).make_encoder(), "xyabé"), (Ids{0, 3, 0}));
  data.unk.reset();
  EXPECT_EQ(encode(*BpeModel(data).make_encoder(), "xyabé"), (Ids{3}));
}

TEST(Bpe, prefixes_and_suffixes_are_part_of_the_spelling) {
  BpeData data;
  data.tokens = {"a", "##b", "##c</w>", "##bc</w>", "a</w>", "abc</w>"};
  data.merges = {{1, 2}, {0, 3}};
  data.continuing_subword_prefix = "##";
  data.end_of_word_suffix = "</w>";
  const BpeModel model(data);
  const auto encoder = model.make_encoder();
  EXPECT_EQ(encode(*encoder, "abc"), (Ids{5}));
  EXPECT_EQ(encode(*encoder, "a"), (Ids{4}));
  EXPECT_EQ(encode(*encoder, "abbc"), (Ids{0, 1, 3}));
}

TEST(Bpe, merges_that_do_not_fit_are_the_users_mistake) {
  BpeData data;
  data.tokens = {"a", "b"};
  data.merges = {{0, 1}};
  EXPECT_THROW(BpeModel{data}, UserError);
  data.merges = {{0, 2}};
  EXPECT_THROW(BpeModel{data}, UserError);
  data.byte_level = true;
  data.tokens = {"\u00e9", "\u0101"};  // the bytes e9 and 01
  data.merges = {{0, 1}};
  EXPECT_EQ(test::message_of<UserError>([&] { BpeModel{data}; }), "merge 0 makes '\ufffd\x01', which is no token");
  data.byte_level = false;
  data.merges.clear();
  data.merges_by_id = true;
  EXPECT_THROW(BpeModel{data}, UserError);
}

TEST(ByteLevel, every_byte_comes_back) {
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) bytes += static_cast<char>(byte);
  EXPECT_EQ(from_byte_level(to_byte_level(bytes)), bytes);
  EXPECT_EQ(to_byte_level(" a\n"), "\u0120a\u010a");
  EXPECT_EQ(from_byte_level("\u2581"), std::nullopt);
}

// Vocabularies and ids by Hugging Face's `tokenizers` (tools/reference/dump_bpe.py).
class GoldenBpe : public testing::TestWithParam<const char*> {};

TEST_P(GoldenBpe, gives_the_ids_of_the_reference) {
  std::ifstream stream(test::source_path("tests/golden/bpe/") + GetParam() + ".json");
  ASSERT_TRUE(stream.good());
  const nlohmann::json file = nlohmann::json::parse(stream);
  BpeData data;
  data.tokens = file.at("tokens").get<std::vector<std::string>>();
  for (const nlohmann::json& merge : file.at("merges")) data.merges.emplace_back(merge[0], merge[1]);
  data.byte_level = file.contains("pattern");
  data.ignore_merges = file.at("ignore_merges");
  data.byte_fallback = file.at("byte_fallback");
  data.fuse_unk = file.at("fuse_unk");
  if (!file.at("unk_token").is_null()) data.unk = 0;
  const BpeModel model(data);
  std::unique_ptr<WordEncoder> words;
  std::unique_ptr<SpacedEncoder> spaced;
  if (data.byte_level)
    words = model.make_text_encoder(file.at("pattern") == "gpt2" ? SplitPattern::gpt2 : SplitPattern::llama3);
  else
    spaced = model.make_spaced_encoder({.split = file.at("split")});
  ASSERT_GT(file.at("cases").size(), 200U);
  for (const nlohmann::json& one : file.at("cases")) {
    const auto text = one.at("text").get<std::string>();
    Ids ids;
    if (words)
      words->encode(text, ids);
    else
      spaced->encode(text, true, ids);
    EXPECT_EQ(ids, one.at("ids").get<Ids>()) << one.dump();
  }
}

INSTANTIATE_TEST_SUITE_P(, GoldenBpe, testing::Values("gpt2", "llama3", "spaced", "spaced_split", "spaced_unknown"));

}  // namespace
}  // namespace tera
