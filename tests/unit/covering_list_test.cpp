#include "tests/support/covering_list.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "tera/base/error.h"

namespace tera::test {
namespace {

using Pair = std::array<int, 4>;  // an axis and its value, another axis and its value

// Every complete choice that keeps the rules, by trying all.
std::vector<Choice> grid(const ChoiceRules& rules) {
  std::vector<Choice> all{{}};
  for (const int values : rules.values) {
    std::vector<Choice> longer;
    for (const Choice& one : all)
      for (int value = 0; value < values; ++value) {
        longer.push_back(one);
        longer.back().push_back(value);
      }
    all = std::move(longer);
  }
  std::erase_if(all, [&](const Choice& one) {
    Choice built(one.size(), open);
    for (std::size_t axis = 0; axis < one.size(); ++axis) {
      built[axis] = one[axis];
      if (!rules.allowed(built, static_cast<int>(axis))) return true;
    }
    return false;
  });
  return all;
}

std::set<Pair> pairs_in(const std::vector<Choice>& choices) {
  std::set<Pair> pairs;
  for (const Choice& one : choices)
    for (int a = 0; a < static_cast<int>(one.size()); ++a)
      for (int b = a + 1; b < static_cast<int>(one.size()); ++b)
        pairs.insert({a, one[static_cast<std::size_t>(a)], b, one[static_cast<std::size_t>(b)]});
  return pairs;
}

std::vector<Choice> pairwise(const ChoiceRules& rules, std::uint32_t seed = 1) {
  return covering_list(rules, pairs_of_values(rules), seed);
}

bool anything(const Choice&, int) { return true; }

TEST(CoveringList, HasEveryPairOfAGrid) {
  const ChoiceRules rules{{3, 2, 4, 2, 3}, anything};
  EXPECT_EQ(pairs_in(pairwise(rules)), pairs_in(grid(rules)));
  EXPECT_LE(pairwise(rules).size(), 18u) << "of 144; 12 at least";
}

// Pairs of values that exclude each other, at random, and with them pairs that others exclude together.
TEST(CoveringList, HasEveryPairThatRulesLeave) {
  for (std::uint32_t seed = 0; seed < 40; ++seed) {
    std::mt19937 random(seed);
    ChoiceRules rules;
    for (int axis = 0; axis < 6; ++axis) rules.values.push_back(2 + static_cast<int>(random() % 3));
    std::set<Pair> apart;
    for (int i = 0; i < 25; ++i) {
      const int a = static_cast<int>(random() % 5),
                b = a + 1 + static_cast<int>(random() % static_cast<unsigned>(5 - a));
      apart.insert({a, static_cast<int>(random() % 4), b, static_cast<int>(random() % 4)});
    }
    rules.allowed = [&](const Choice& choice, int axis) {
      for (int other = 0; other < 6; ++other) {
        const int a = std::min(axis, other), b = std::max(axis, other);
        if (apart.contains({a, choice[static_cast<std::size_t>(a)], b, choice[static_cast<std::size_t>(b)]}))
          return false;
      }
      return true;
    };
    EXPECT_EQ(pairs_in(pairwise(rules)), pairs_in(grid(rules))) << seed;
    for (const Choice& one : pairwise(rules)) EXPECT_TRUE(completed(rules, one)) << seed;
  }
}

// A rule of three values, of which any two go together.
TEST(CoveringList, GoesBackWhereAllThreeDoNot) {
  ChoiceRules rules{{2, 2, 2}, [](const Choice& choice, int) { return choice != Choice{1, 1, 1}; }};
  EXPECT_EQ(pairs_in(pairwise(rules)), pairs_in(grid(rules)));
  EXPECT_EQ(completed(rules, {1, open, 1}), (Choice{1, 0, 1}));
  EXPECT_EQ(completed(rules, {1, 1, 1}), std::nullopt);
}

TEST(CoveringList, OfSingleValuesIsAsLongAsTheLongestAxis) {
  const ChoiceRules rules{{3, 2, 5, 2, 3}, anything};
  EXPECT_EQ(covering_list(rules, single_values(rules), 1).size(), 5u);
  EXPECT_EQ(single_values(rules).size(), 15u);
}

TEST(CoveringList, IsTheSameForTheSameInput) {
  const ChoiceRules rules{{2, 2, 2, 2}, anything};
  const std::vector<Choice> list = pairwise(rules, 7);
  EXPECT_EQ(list, pairwise(rules, 7));
  const std::vector<Choice> written{{0, 0, 0, 0}, {0, 1, 1, 1}, {1, 0, 0, 1}, {1, 1, 1, 0}, {0, 0, 1, 0}, {0, 1, 0, 0}};
  EXPECT_EQ(list, written) << "on every machine, with every compiler";
}

TEST(CoveringList, AFeatureAddsFewAndNoGrid) {
  const ChoiceRules before{{6, 5, 7, 7, 3, 4, 2, 3, 2, 2, 4, 2, 5, 4, 3, 2}, anything};
  ChoiceRules after = before;
  after.values.push_back(2);
  EXPECT_LE(pairwise(after).size(), pairwise(before).size() + 10);
}

TEST(CoveringList, AnEndlessSearchIsAFault) {
  ChoiceRules rules{std::vector<int>(40, 3), [](const Choice& choice, int axis) {
                      return axis != 39 || choice[0] != 0;  // seen only when all between are chosen
                    }};
  EXPECT_THROW(completed(rules, Choice(40, open)), Error);
}

}  // namespace
}  // namespace tera::test
