#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tera/base/error.h"
#include "tera/infer/sampler.h"
#include "tests/support/count_news.h"
#include "tests/support/expect_error.h"

namespace tera::test {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr int draws = 20000;

std::vector<int> histogram(const std::vector<float>& logits, const SamplingOptions& options) {
  std::vector<int> counts(logits.size());
  std::vector<TokenWeight> scratch(logits.size());
  const RngKey key = rng_stream(42, "generate");
  for (std::uint64_t position = 0; position < draws; ++position)
    ++counts[static_cast<std::size_t>(sample_token(logits, options, key, position, scratch))];
  return counts;
}

// The draws follow these probabilities (zero: never), by a chi-square bound at p = 0.0001 for up to five tokens.
void expect_distribution(const std::vector<int>& counts, const std::vector<double>& probabilities) {
  double chi = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double expected = draws * probabilities[i];
    if (expected == 0)
      EXPECT_EQ(counts[i], 0) << "token " << i;
    else
      chi += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  EXPECT_LT(chi, 23.5);
}

std::vector<float> logs(const std::vector<double>& probabilities) {
  std::vector<float> out;
  for (const double p : probabilities) out.push_back(static_cast<float>(std::log(p)) + 3.0f);
  return out;
}

TEST(SampleToken, GreedyTakesTheFirstOfTheLargest) {
  const std::vector<float> logits{-1, 5, 5, 2, -infinity};
  EXPECT_EQ(sample_token(logits, {.temperature = 0}, RngKey{1}, 0, {}), 1);
  EXPECT_EQ(sample_token(logits, {.temperature = 0.7f, .top_k = 1}, RngKey{1}, 9, {}), 1);
  EXPECT_EQ(sample_token(std::vector<float>{-2}, {.temperature = 0}, RngKey{1}, 0, {}), 0);
}

TEST(SampleToken, DrawsFromTheSoftmax) {
  const std::vector<double> p{.5, .05, .25, .2};
  expect_distribution(histogram(logs(p), {}), p);
}

TEST(SampleToken, TemperatureSharpensAndFlattens) {
  const std::vector<float> logits = logs({.6, .3, .1});
  expect_distribution(histogram(logits, {.temperature = 0.5f}), {.36 / .46, .09 / .46, .01 / .46});
  const double a = std::sqrt(.6), b = std::sqrt(.3), c = std::sqrt(.1), sum = a + b + c;
  expect_distribution(histogram(logits, {.temperature = 2}), {a / sum, b / sum, c / sum});
  expect_distribution(histogram(logits, {.temperature = 1e-6f}), {1, 0, 0});
}

TEST(SampleToken, TopKKeepsTheMostLikelyAndTheLowerIdOfEquals) {
  expect_distribution(histogram(logs({.1, .4, .2, .3}), {.top_k = 2}), {0, 4. / 7, 0, 3. / 7});
  expect_distribution(histogram({1, 1, 1, 1}, {.top_k = 3}), {1. / 3, 1. / 3, 1. / 3, 0});
  expect_distribution(histogram(logs({.5, .5}), {.top_k = 99}), {.5, .5});
}

TEST(SampleToken, TopPKeepsTheFewestThatReachIt) {
  const std::vector<float> logits = logs({.1, .4, .2, .3});
  expect_distribution(histogram(logits, {.top_p = .69f}), {0, 4. / 7, 0, 3. / 7});
  expect_distribution(histogram(logits, {.top_p = .71f}), {0, 4. / 9, 2. / 9, 3. / 9});
  expect_distribution(histogram(logits, {.top_p = .01f}), {0, 1, 0, 0});
  // top-k first, then top-p of what is left: .4/.7 alone reaches .55
  expect_distribution(histogram(logits, {.top_k = 2, .top_p = .55f}), {0, 1, 0, 0});
}

TEST(SampleToken, IsAFunctionOfSeedAndPosition) {
  const std::vector<float> logits(1000, 0.0f);
  std::vector<TokenWeight> scratch(1000);
  const auto draw = [&](std::uint64_t seed, std::uint64_t position) {
    return sample_token(logits, {}, rng_stream(seed, "generate"), position, scratch);
  };
  EXPECT_EQ(draw(1, 5), draw(1, 5));
  int same_seed = 0, same_position = 0;
  for (std::uint64_t i = 0; i < 100; ++i) {
    same_seed += draw(1, i) == draw(1, i + 1) ? 1 : 0;
    same_position += draw(i, 3) == draw(i + 1, 3) ? 1 : 0;
  }
  EXPECT_LT(same_seed, 5);
  EXPECT_LT(same_position, 5);
}

TEST(SampleToken, MaskedTokensNeverComeAndBrokenLogitsAreNamed) {
  expect_distribution(histogram({0, -infinity, 0}, {}), {.5, 0, .5});
  std::vector<TokenWeight> scratch(2);
  const auto sample = [&](std::vector<float> logits) { sample_token(logits, {}, RngKey{1}, 0, scratch); };
  EXPECT_TRUE(contains(message_of<Error>([&] { sample({0, std::nanf("")}); }), "token 1 is not a number"));
  EXPECT_TRUE(contains(message_of<Error>([&] { sample({-infinity, -infinity}); }), "largest logit is -inf"));
  EXPECT_THROW(sample({infinity, 0}), Error);
  EXPECT_THROW(sample({}), Error);
  EXPECT_THROW(sample({1, 2, 3}), Error);  // too little scratch
}

TEST(SampleToken, AllocatesNothing) {
  std::vector<float> logits(5000);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = uniform_from_bits(philox(RngKey{5}, i, 0)[0]);
  std::vector<TokenWeight> scratch(logits.size());
  const SamplingOptions options{.temperature = 0.8f, .top_k = 2000, .top_p = .9f};
  EXPECT_EQ(news_during([&] { sample_token(logits, options, RngKey{1}, 0, scratch); }), 0);
}

TEST(SampleToken, BadOptionsAreTheUsersMistake) {
  EXPECT_NO_THROW(SamplingOptions{}.check());
  EXPECT_TRUE(
      contains(message_of<UserError>([] { SamplingOptions{.temperature = -1}.check(); }), "--temperature is -1"));
  EXPECT_TRUE(contains(message_of<UserError>([] { SamplingOptions{.temperature = std::nanf("")}.check(); }), "nan"));
  EXPECT_TRUE(contains(message_of<UserError>([] { SamplingOptions{.top_k = -1}.check(); }), "--top-k is -1"));
  EXPECT_TRUE(contains(message_of<UserError>([] { SamplingOptions{.top_p = 0}.check(); }), "--top-p is 0"));
  EXPECT_TRUE(contains(message_of<UserError>([] { SamplingOptions{.top_p = 1.5f}.check(); }), "--top-p is 1.5"));
}

}  // namespace
}  // namespace tera::test
