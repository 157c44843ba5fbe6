#pragma once
// The axes of the sweep over layouts and models, which values exclude each other, and the layouts that are drawn from
// them (a pairwise covering list). A new feature is one more axis in sweep_axes.cpp: with two values it adds a few
// layouts, in which it meets every value of every other axis.

#include <cstdint>
#include <string>
#include <vector>

#include "tests/parallel/sweep_expect.h"
#include "tests/support/covering_list.h"

namespace tera::test {

// Degrees of a layout, and the heads they have to divide.
struct SweepSizes {
  int tp = 1, cp = 1, pp = 1, dp = 1, ep = 1;
  int etp = 0;                             // 0: as tp
  int key_heads = 0, other_key_heads = 0;  // KV heads of the model's config, and of an axis that overrides them
  bool ulysses = false;
  int ranks() const { return tp * cp * pp * dp; }
};

struct AxisValue {
  std::string name;    // no other value of any axis has it
  Overrides layout{};  // how several ranks train
  Overrides model{};   // what is trained, which one rank alone does too
  SweepSizes sizes{};  // those it sets
};

struct SweepAxis {
  std::string name;
  std::vector<AxisValue> values;  // the first is what a config has that says nothing
};

const std::vector<SweepAxis>& sweep_axes();
std::vector<std::string> sweep_models();  // the values of the first axis

// Values that do not go with each other, all of the first with all of the second.
struct Apart {
  enum class By : std::uint8_t {
    program,  // the program refuses them
    sense,    // the program takes them, but they say nothing, or what one rank has is then no measure
  };
  By by = By::program;
  std::vector<std::string> one, other;
};

const std::vector<Apart>& values_apart();

// The rules for covering lists: pairs of values that do not go together, and sizes that limit each other.
ChoiceRules sweep_rules();
Choice choice_of(const std::vector<std::string>& names);  // open on all other axes
std::string describe(const Choice& choice);               // without what is the first of its axis

// A layout, and how far it may be from one rank.
struct DrawnLayout {
  SweepCase alone, shared;
  SweepLimits limits;
  std::string name, model;
};
DrawnLayout drawn_layout(const Choice& complete);

std::vector<Choice> one_layout_per_value();  // all else the first of its axis, where that goes with it
std::vector<Choice> all_pairs();             // every two values that go together meet in one of these
// Each value that goes with so many ranks comes in one of these; 0: any number.
std::vector<Choice> every_value(int ranks);

}  // namespace tera::test
