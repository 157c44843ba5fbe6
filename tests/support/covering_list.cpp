#include "tests/support/covering_list.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <random>
#include <utility>

#include "tera/base/error.h"

namespace tera::test {
namespace {

constexpr int candidates = 6;  // tried per entry; the one that covers most is taken

std::size_t at(int index) { return static_cast<std::size_t>(index); }

int axes_of(const ChoiceRules& rules) { return static_cast<int>(rules.values.size()); }

// Tries values in order, going back where none goes; where rules join axes that are far apart, that has no end.
bool complete_from(const ChoiceRules& rules, Choice& choice, int axis, int& tries) {
  constexpr int max_tries = 200'000;
  require(++tries < max_tries, "axes whose values exclude each other should be neighbours");
  while (axis < axes_of(rules) && choice[at(axis)] != open) ++axis;
  if (axis == axes_of(rules)) return true;
  for (int value = 0; value < rules.values[at(axis)]; ++value) {
    choice[at(axis)] = value;
    if (rules.allowed(choice, axis) && complete_from(rules, choice, axis + 1, tries)) return true;
  }
  choice[at(axis)] = open;
  return false;
}

bool goes_together(const ChoiceRules& rules, const Choice& choice) {
  Choice built(choice.size(), open);
  for (int axis = 0; axis < axes_of(rules); ++axis) {
    if (choice[at(axis)] == open) continue;
    built[at(axis)] = choice[at(axis)];
    if (!rules.allowed(built, axis)) return false;
  }
  return true;
}

// Targets that no choice of the list has yet. A value alone is a pair with itself.
class Uncovered {
 public:
  Uncovered(const ChoiceRules& rules, const std::vector<Choice>& targets) {
    for (const int values : rules.values) {
      first_.push_back(values_);
      values_ += values;
    }
    missing_.assign(at(values_ * values_), false);
    for (const Choice& target : targets) {
      const auto [a, b] = ends_of(target);
      set(a, target[at(a)], b, target[at(b)], true);
    }
  }

  bool misses(const Choice& target) const {
    const auto [a, b] = ends_of(target);
    return missing_[index(a, target[at(a)], b, target[at(b)])];
  }

  // How many targets a value adds to those that a choice has.
  int gain(const Choice& choice, int axis, int value) const {
    int gained = missing_[index(axis, value, axis, value)] ? 1 : 0;
    for (int other = 0; other < static_cast<int>(choice.size()); ++other)
      if (other != axis && choice[at(other)] != open)
        gained += missing_[index(axis, value, other, choice[at(other)])] ? 1 : 0;
    return gained;
  }

  int gain(const Choice& complete) const {
    Choice built(complete.size(), open);
    int gained = 0;
    for (int axis = 0; axis < static_cast<int>(complete.size()); ++axis) {
      gained += gain(built, axis, complete[at(axis)]);
      built[at(axis)] = complete[at(axis)];
    }
    return gained;
  }

  void take(const Choice& complete) {
    for (int a = 0; a < static_cast<int>(complete.size()); ++a)
      for (int b = 0; b < static_cast<int>(complete.size()); ++b) set(a, complete[at(a)], b, complete[at(b)], false);
  }

 private:
  static std::pair<int, int> ends_of(const Choice& target) {
    const auto chosen = [](int value) { return value != open; };
    const auto first = std::ranges::find_if(target, chosen) - target.begin();
    const auto second = std::find_if(target.begin() + first + 1, target.end(), chosen) - target.begin();
    const bool one = at(static_cast<int>(second)) == target.size();
    return {static_cast<int>(first), static_cast<int>(one ? first : second)};
  }
  std::size_t index(int a, int value_a, int b, int value_b) const {
    return at((first_[at(a)] + value_a) * values_ + first_[at(b)] + value_b);
  }
  void set(int a, int value_a, int b, int value_b, bool missing) {
    missing_[index(a, value_a, b, value_b)] = missing;
    missing_[index(b, value_b, a, value_a)] = missing;
  }

  std::vector<int> first_;  // first value of each axis, among the values of all
  int values_ = 0;
  std::vector<bool> missing_;
};

// The library's shuffles differ between libraries, its generators do not.
void shuffle(std::vector<int>& order, std::mt19937& random) {
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
}

// The axes one after the other, in the given order, each with the value that gains most; the first of equals.
Choice grown(const ChoiceRules& rules, const Uncovered& uncovered, Choice choice, const std::vector<int>& order) {
  for (const int axis : order) {
    if (choice[at(axis)] != open) continue;
    std::vector<std::pair<int, int>> ranked;
    for (int value = 0; value < rules.values[at(axis)]; ++value)
      ranked.emplace_back(-uncovered.gain(choice, axis, value), value);
    std::ranges::sort(ranked);
    for (const auto& [loss, value] : ranked) {
      choice[at(axis)] = value;
      if (rules.allowed(choice, axis) && completed(rules, choice)) break;
      choice[at(axis)] = open;
    }
  }
  return choice;
}

}  // namespace

std::optional<Choice> completed(const ChoiceRules& rules, Choice choice) {
  int tries = 0;
  if (!goes_together(rules, choice) || !complete_from(rules, choice, 0, tries)) return std::nullopt;
  return choice;
}

std::vector<Choice> single_values(const ChoiceRules& rules) {
  std::vector<Choice> all;
  for (int axis = 0; axis < axes_of(rules); ++axis)
    for (int value = 0; value < rules.values[at(axis)]; ++value) {
      Choice one(rules.values.size(), open);
      one[at(axis)] = value;
      if (completed(rules, one)) all.push_back(one);
    }
  return all;
}

std::vector<Choice> pairs_of_values(const ChoiceRules& rules) {
  std::vector<Choice> all;
  const std::vector<Choice> singles = single_values(rules);
  for (std::size_t i = 0; i < singles.size(); ++i)
    for (std::size_t j = i + 1; j < singles.size(); ++j) {
      Choice both = singles[i];
      bool apart = true;
      for (std::size_t axis = 0; axis < both.size(); ++axis) {
        if (singles[j][axis] == open) continue;
        apart = both[axis] == open;
        both[axis] = singles[j][axis];
      }
      if (apart && completed(rules, both)) all.push_back(both);
    }
  return all;
}

std::vector<Choice> covering_list(const ChoiceRules& rules, const std::vector<Choice>& targets, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int> order(rules.values.size());
  std::iota(order.begin(), order.end(), 0);
  Uncovered uncovered(rules, targets);
  std::vector<Choice> list;
  for (const Choice& target : targets) {
    if (!uncovered.misses(target)) continue;
    Choice best;
    int max_gained = 0;
    for (int i = 0; i < candidates; ++i) {
      shuffle(order, random);
      const Choice candidate = grown(rules, uncovered, target, order);
      const int gained = uncovered.gain(candidate);
      if (gained > max_gained) {
        max_gained = gained;
        best = candidate;
      }
    }
    uncovered.take(best);
    list.push_back(best);
  }
  return list;
}

bool covers(const Choice& complete, const Choice& target) {
  for (std::size_t axis = 0; axis < target.size(); ++axis)
    if (target[axis] != open && target[axis] != complete[axis]) return false;
  return true;
}

}  // namespace tera::test
