#pragma once
// Pairwise covering lists: short lists of choices in which every pair of values comes at least once, so that
// interactions of two values are tested without the grid of all. A new axis of two values then adds a few choices and
// does not double their number.

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace tera::test {

// The number of a value for each axis; `open` where none is chosen yet.
using Choice = std::vector<int>;
inline constexpr int open = -1;

// The rules of a choice, which has one value of each axis.
struct ChoiceRules {
  std::vector<int> values;  // how many each axis has
  // Whether values of a choice that may still be open on other axes go together; more of them never make good what is
  // false. The axis is the one that was chosen last: all others were asked about before.
  std::function<bool(const Choice&, int)> allowed;
};

// The given values with others that go with them, the first of each axis where these do; none where nothing goes.
std::optional<Choice> completed(const ChoiceRules& rules, Choice choice);

// Choices of one value alone, and of two values of different axes, that can be completed.
std::vector<Choice> single_values(const ChoiceRules& rules);
std::vector<Choice> pairs_of_values(const ChoiceRules& rules);

// A list of complete choices in which each of the targets, of one or two values, comes. It is the same for the same
// input.
std::vector<Choice> covering_list(const ChoiceRules& rules, const std::vector<Choice>& targets, std::uint32_t seed);

// Whether a complete choice has these values.
bool covers(const Choice& complete, const Choice& target);

}  // namespace tera::test
