#include "tera/tokenizer/unigram.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tera/base/error.h"
#include "tests/unit/text_steps.h"

namespace tera::test {
namespace {

using nlohmann::json;

std::vector<std::int32_t> encode(const WordModel& model, std::string_view word) {
  std::vector<std::int32_t> ids;
  model.make_encoder()->encode(word, ids);
  return ids;
}

TEST(Unigram, EqualsTheReference) {
  for (const json& golden : text_steps()["unigram"]) {
    const auto model = make_unigram(golden["model"], "model");
    ASSERT_GE(golden["cases"].size(), 150u);
    for (const json& entry : golden["cases"])
      EXPECT_EQ(encode(*model, entry[0].get<std::string>()), entry[1].get<std::vector<std::int32_t>>()) << entry[0];
  }
}

// The best of all ways to cut a short word.
double best_score(std::string_view word, std::span<const Unigram::Entry> vocabulary) {
  if (word.empty()) return 0;
  double best = -std::numeric_limits<double>::infinity();
  for (const auto& [token, score] : vocabulary)
    if (word.starts_with(token)) best = std::max(best, score + best_score(word.substr(token.size()), vocabulary));
  return best;
}

TEST(Unigram, FindsTheBestOfAllWays) {
  const std::vector<Unigram::Entry> vocabulary = {{"a", -3},   {"b", -2.5}, {"c", -4},   {"ab", -4.25}, {"bc", -5.5},
                                                  {"abc", -7}, {"ca", -6},  {"aab", -8}, {"bb", -5.25}};
  const Unigram model(vocabulary, {});
  std::mt19937 random(2);
  for (int i = 0; i < 500; ++i) {
    std::string word(1 + random() % 9, ' ');
    for (char& c : word) c = "abc"[random() % 3];
    double score = 0;
    std::string joined;
    for (const std::int32_t id : encode(model, word)) {
      score += vocabulary[static_cast<std::size_t>(id)].second;
      joined += vocabulary[static_cast<std::size_t>(id)].first;
    }
    EXPECT_EQ(joined, word);
    EXPECT_DOUBLE_EQ(score, best_score(word, vocabulary)) << word;
  }
  EXPECT_THROW(encode(model, "abx"), UserError);
}

TEST(Unigram, NamesWhatIsWrong) {
  const auto message = [](const json& model) -> std::string {
    try {
      (void)make_unigram(model, "file: model");
    } catch (const UserError& error) {
      return error.what();
    }
    return {};
  };
  const json pairs = json::array({json::array({"<unk>", 0}), json::array({"a", -1.5})});
  EXPECT_EQ(message({{"vocab", pairs}, {"unk_id", 0}}), "");
  EXPECT_EQ(message({{"vocab", pairs}, {"unk_id", nullptr}}), "");
  EXPECT_EQ(message({{"vocab", pairs}, {"unk_id", 2}}), "file: model.unk_id is 2, but the vocabulary has 2 tokens");
  EXPECT_EQ(message({{"vocab", pairs}, {"unk_id", -1}}), "file: model.unk_id is no count");
  EXPECT_EQ(message({{"vocab", json::array({json::array({"a", -1}), json::array({"b"})})}}),
            "file: model.vocab[1] is no pair of a token and a score");
  EXPECT_EQ(message({{"vocab", 3}}), "file: model.vocab is no list");
  EXPECT_EQ(message({{"unk_id", 0}}), "file: model.vocab is missing");
  EXPECT_EQ(message({{"vocab", pairs}, {"alpha", 0.1}}), "file: model.alpha is a field that tera does not know");
}

}  // namespace
}  // namespace tera::test
