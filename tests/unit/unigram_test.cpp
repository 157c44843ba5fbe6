#include "tera/tokenizer/sentencepiece/unigram.h"

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
    std::vector<Unigram::Entry> vocabulary;
    for (const json& entry : golden["model"]["vocab"])
      vocabulary.emplace_back(entry[0].get_ref<const std::string&>(), entry[1].get<double>());
    const Unigram model(vocabulary, {golden["model"]["unk_id"], golden["model"]["byte_fallback"]});
    ASSERT_GE(golden["cases"].size(), 100u);
    for (const json& entry : golden["cases"])
      EXPECT_EQ(encode(model, entry[0].get<std::string>()), entry[1].get<std::vector<std::int32_t>>()) << entry[0];
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

}  // namespace
}  // namespace tera::test
