// The layouts drawn from the axes have every pair of values, and leave out nothing that the program supports.

#include <gtest/gtest.h>

#include <algorithm>

#include "tera/base/error.h"
#include "tests/parallel/sweep_axes.h"

namespace tera::test {
namespace {

bool is_taken(const Choice& complete) {
  try {
    sweep_setup(drawn_layout(complete).alone);
    sweep_setup(drawn_layout(complete).shared);
    return true;
  } catch (const UserError&) {
    return false;
  }
}

TEST(SweepAxes, EveryPairMeets) {
  const std::vector<Choice> list = all_pairs(), pairs = pairs_of_values(sweep_rules());
  EXPECT_GT(pairs.size(), 3000u);
  for (const Choice& pair : pairs)
    EXPECT_TRUE(std::ranges::any_of(list, [&](const Choice& one) { return covers(one, pair); })) << describe(pair);
  EXPECT_LE(list.size(), 110u) << "it is to stay far from a grid";
}

TEST(SweepAxes, EveryValueHasALayoutOfItsOwn) {
  const std::vector<Choice> own = one_layout_per_value(), few = every_value(0);
  for (const SweepAxis& axis : sweep_axes())
    for (const AxisValue& value : axis.values)
      for (const auto& list : {own, few})
        EXPECT_TRUE(std::ranges::any_of(list, [&](const Choice& one) { return covers(one, choice_of({value.name})); }))
            << value.name;
  EXPECT_LE(few.size(), 16u);
}

TEST(SweepAxes, TheProgramTakesWhatIsDrawn) {
  for (const auto& list : {all_pairs(), one_layout_per_value(), every_value(0), every_value(2), every_value(8)})
    for (const Choice& one : list) EXPECT_TRUE(is_taken(one)) << describe(one);
}

// A rule that no longer holds would keep a pair from ever being tested.
TEST(SweepAxes, TheProgramRefusesWhatIsApart) {
  ChoiceRules rules = sweep_rules();
  const auto obeyed = rules.allowed;
  for (const Apart& rule : values_apart()) {
    if (rule.by == Apart::By::sense) continue;
    int checked = 0;
    for (const std::string& one : rule.one)
      for (const std::string& other : rule.other) {
        const Choice pair = choice_of({one, other});
        // All rules but this one, without what they say of the two values.
        rules.allowed = [&](const Choice& choice, int axis) {
          const auto without = [&](const std::string& name) {
            Choice rest = choice;
            for (std::size_t i = 0; i < rest.size(); ++i)
              if (choice_of({name})[i] != open && static_cast<int>(i) != axis) rest[i] = open;
            return rest;
          };
          if (pair[static_cast<std::size_t>(axis)] == open) return obeyed(choice, axis);
          const bool of_one = choice_of({one})[static_cast<std::size_t>(axis)] != open;
          return obeyed(without(of_one ? other : one), axis);
        };
        const auto layout = completed(rules, pair);
        if (!layout) continue;  // Another rule keeps them apart as well.
        ++checked;
        EXPECT_FALSE(is_taken(*layout)) << one << " goes with " << other << ": " << describe(*layout);
      }
    EXPECT_GT(checked, 0) << "no layout shows what the rule of " << rule.one.front() << " and " << rule.other.front()
                          << " is for";
  }
}

// The list without a value's axis is the list before the feature.
TEST(SweepAxes, AFeatureAddsFewLayouts) {
  const ChoiceRules rules = sweep_rules();
  const std::size_t full_size = all_pairs().size();
  const auto pairs = pairs_of_values(rules);
  for (const std::string name : {"dropout", "tied", "packed", "calls_together", "sgd"}) {
    const Choice feature = choice_of({name});
    const auto axis = static_cast<std::size_t>(std::ranges::find_if(feature, [](int value) { return value != open; }) -
                                               feature.begin());
    std::vector<Choice> before;
    for (const Choice& pair : pairs)
      if (pair[axis] == open) before.push_back(pair);
    EXPECT_LE(full_size, covering_list(rules, before, 1).size() + 10) << name;
  }
}

}  // namespace
}  // namespace tera::test
