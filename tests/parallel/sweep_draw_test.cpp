// Layouts drawn from the axes of sweep_axes.cpp: each trains as one rank does.

#include <gtest/gtest.h>

#include <map>
#include <ostream>

#include "tests/parallel/sweep_axes.h"
#include "tests/support/count_allocations.h"

namespace tera::test {
namespace {

// Under a sanitizer, errors of memory or threads show in the first steps; another build checks numbers. A batch that
// grows has its full size in the fifth step.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int steps = 2;
#else
constexpr int steps = 6;
#endif

// Results of one rank alone, by its overrides.
const SweepResult& one_rank(const SweepCase& alone) {
  static std::map<std::string, SweepResult> known;
  const auto [found, fresh] = known.try_emplace(alone.describe());
  if (fresh) run_on_threads(alone, steps, found->second);
  return found->second;
}

void expect_to_train(const std::vector<Choice>& layouts, const std::string& model = "") {
  for (const Choice& layout : layouts) {
    DrawnLayout drawn = drawn_layout(layout);
    if (!model.empty() && drawn.model != model) continue;
    SCOPED_TRACE(drawn.name);
    drawn.limits.steps = steps;
    if (can_count_allocations()) {
      drawn.limits.start_counting = start_counting_allocations;
      drawn.limits.stop_counting = stop_counting_allocations;
    }
    expect_like_one_rank(drawn.shared, one_rank(drawn.alone), drawn.limits);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(SweepDraw, OneLayoutPerValue) { expect_to_train(one_layout_per_value()); }
TEST(SweepDraw, EveryValueInFewLayouts) { expect_to_train(every_value(0)); }

class SweepPairs : public testing::TestWithParam<std::string> {};

TEST_P(SweepPairs, TrainAsOneRankDoes) { expect_to_train(all_pairs(), GetParam()); }

INSTANTIATE_TEST_SUITE_P(Of, SweepPairs, testing::ValuesIn(sweep_models()), [](const auto& one) { return one.param; });

}  // namespace
}  // namespace tera::test
