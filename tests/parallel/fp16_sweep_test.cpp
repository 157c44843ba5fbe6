// fp16 in many layouts: each trains as one rank does, and what overflows on one rank is skipped by all.

#include <gtest/gtest.h>

#include <cmath>

#include "tests/parallel/sweep_expect.h"
#include "tests/support/count_allocations.h"

namespace tera::test {
namespace {

// A scale at which nothing overflows by itself.
const Overrides fp16{"mixed_precision.precision=fp16", "mixed_precision.initial_loss_scale=4096"};

// Partial sums are rounded to fp16 before they are added over ranks, and every rounding of an activation propagates
// through the layers after it: several units of fp16.
SweepLimits fp16_limits() {
  SweepLimits limits{.loss = 5e-4, .norm = 5e-3, .gradients = DType::f16, .slack = 8};
  if (can_count_allocations()) {
    limits.start_counting = start_counting_allocations;
    limits.stop_counting = stop_counting_allocations;
  }
  return limits;
}

void sweep(const std::string& config, std::size_t first, std::size_t stride) {
  const std::vector<SweepCase> all = sweep_layouts();
  SweepResult alone;
  run_on_threads({.config = config, .overrides = fp16}, sweep_steps, alone);
  for (std::size_t i = first; i < all.size(); i += stride) {
    const SweepCase one{.config = config, .ranks = all[i].ranks, .overrides = all[i].overrides + fp16};
    expect_like_one_rank(one, alone, fp16_limits());
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(Fp16SweepSlow, Llama) { sweep("sweep_llama", 2, 7); }
TEST(Fp16SweepSlow, Gpt) { sweep("sweep_gpt", 5, 7); }

int last_rank_with_loss(const SweepCase& one) {
  const tera::Setup setup = sweep_setup(one);
  int rank = one.ranks - 1;
  while (!TrainingStep(setup, rank).layout().has_loss) --rank;
  return rank;
}

const std::vector<SweepCase> cut{
    {.ranks = 1},
    {.ranks = 2, .overrides = tp2},
    {.ranks = 4, .overrides = tp4 + sp},
    {.ranks = 2, .overrides = pp2 + zero_bubble},
    {.ranks = 2, .overrides = pp2 + zbv},
    {.ranks = 4, .overrides = pp4 + full},
    {.ranks = 2, .overrides = buckets + overlap},
    {.ranks = 2, .overrides = zero1 + buckets},
    {.ranks = 4, .overrides = zero2 + overlap},
    {.ranks = 4, .overrides = zero3},
    {.ranks = 8, .overrides = tp2 + sp + pp2 + zero1},
    {.ranks = 8, .overrides = tp2 + pp2 + zero_bubble + zero3},
};

// No rank's weights change in that step, and all ranks have one scale.
TEST(Fp16Overflow, OnOneRankIsSkippedByAll) {
  const Overrides at_once{"mixed_precision.hysteresis=1"};
  for (SweepCase one : cut) {
    one.overrides = one.overrides + fp16 + at_once;
    SweepResult before;
    run_on_threads(one, 2, before);
    EXPECT_EQ(before.skipped, 0) << one.describe();
    for (const bool in_loss : {true, false}) {
      one.overflow = {.step = 2, .rank = in_loss ? last_rank_with_loss(one) : 0, .in_loss = in_loss};
      SCOPED_TRACE(one.describe());
      SweepResult with;
      run_on_threads(one, 3, with);
      EXPECT_EQ(with.skipped, one.ranks);
      EXPECT_EQ(with.scale, (std::vector<double>{4096, 4096, 2048}));
      EXPECT_FALSE(std::isfinite(with.norm[2]));
      EXPECT_TRUE(with.weights.complete());
      EXPECT_TRUE(with.weights.tensors() == before.weights.tensors());
    }
  }
}

// The bias of experts does not change in a skipped step.
TEST(Fp16Overflow, ASkippedStepMovesNoBias) {
  const auto biases = [](const SweepResult& result) {
    std::map<std::string, std::vector<float>> all;
    for (const auto& [name, values] : result.router_state.tensors())
      if (name.ends_with("e_score_correction_bias")) all[name] = values;
    return all;
  };
  for (const std::size_t i : {0, 2, 3, 10}) {
    SweepCase one = cut[i];
    one.config = "sweep_moe_bias";
    one.overrides = one.overrides + fp16;
    SweepResult before, with, without;
    run_on_threads(one, 2, before);
    run_on_threads(one, 3, without);
    one.overflow = {.step = 2, .rank = 0};
    SCOPED_TRACE(one.describe());
    run_on_threads(one, 3, with);
    EXPECT_EQ(with.skipped, one.ranks);
    ASSERT_EQ(biases(with).size(), 3u);
    EXPECT_EQ(biases(with), biases(before));
    EXPECT_NE(biases(without), biases(before));
  }
}

// The first steps overflow by themselves; then all train on, as one rank does.
TEST(Fp16Overflow, EveryLayoutRecovers) {
  const Overrides high{"mixed_precision.precision=fp16", "mixed_precision.initial_loss_scale=268435456",
                       "mixed_precision.hysteresis=1"};
  SweepResult alone;
  run_on_threads({.overrides = high}, 14, alone);
  EXPECT_GT(alone.skipped, 2);
  EXPECT_LT(alone.skipped, 12);
  EXPECT_EQ(alone.scale.back(), 268435456 / std::exp2(alone.skipped));
  for (SweepCase one : {cut[2], cut[4], cut[8], cut[11]}) {
    one.overrides = one.overrides + high;
    SCOPED_TRACE(one.describe());
    SweepResult got;
    run_on_threads(one, 14, got);
    EXPECT_EQ(got.scale, alone.scale);
    EXPECT_EQ(got.skipped, alone.skipped * one.ranks);
    EXPECT_NEAR(got.loss.back(), alone.loss.back(), 5e-4 * alone.loss.back());
  }
}

}  // namespace
}  // namespace tera::test
