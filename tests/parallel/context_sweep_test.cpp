// Sequences over several ranks: each layout trains as one rank does. Beside what is particular to some, the whole
// lists, for make slow.

#include <gtest/gtest.h>

#include <ostream>

#include "tests/parallel/sweep_expect.h"
#include "tests/support/count_allocations.h"

namespace tera::test {

void PrintTo(const DynamicSweep& one, std::ostream* out) { *out << one.alone.describe() << ", dealt"; }
void PrintTo(const ContextSweep& one, std::ostream* out) { *out << one.alone.describe(); }

namespace {

void sweep(const ContextSweep& one, const Overrides& how, SweepLimits limits = {}) {
  if (can_count_allocations()) {
    limits.start_counting = start_counting_allocations;
    limits.stop_counting = stop_counting_allocations;
  }
  SweepResult alone;
  play_threads(one.alone, limits.steps, alone);
  for (const auto& [ranks, layout] : one.layouts) {
    SweepCase shared = one.alone;
    shared.ranks = ranks;
    shared.overrides = shared.overrides + layout + how;
    expect_like_one_rank(shared, alone, limits);
    if (testing::Test::HasFatalFailure()) return;
  }
}

class ContextSweepSlow : public testing::TestWithParam<ContextSweep> {};

TEST_P(ContextSweepSlow, HeadsTravel) { sweep(GetParam(), heads_travel); }
TEST_P(ContextSweepSlow, KeysAreGathered) { sweep(GetParam(), keys_gathered); }
TEST_P(ContextSweepSlow, KeysGoRound) { sweep(GetParam(), keys_go_round); }

const Overrides s24{"train.seq_length=24"}, cp3{"dist.context_parallel_size=3"};

// Ranks that share sequences need not divide the heads, unless these travel.
TEST(ContextSlow, FewHeads) {
  const Overrides one_group{"model.num_query_groups=1"}, window{"model.window_size=7"};
  const Overrides one_sequence{"train.micro_batch_size=1"};
  for (const Overrides& model : {one_group + s24, one_group + s24 + packed_documents, window + s24 + one_sequence}) {
    const ContextSweep one{{.config = "sweep_llama", .overrides = model},
                           {{3, cp3},
                            {4, cp4},
                            {8, cp4 + tp2 + sp},
                            {8, cp2 + tp4},
                            {6, cp3 + pp2 + zero_bubble},
                            {6, cp3 + zero3 + full}}};
    sweep(one, keys_gathered);
    sweep(one, keys_go_round);
  }
}

TEST(ContextSweep, OneHeadOnThreeRanks) {
  const Overrides one_group{"model.num_query_groups=1"};
  sweep({{.config = "sweep_llama", .overrides = one_group + s24 + packed_documents},
         {{3, cp3}, {6, cp3 + pp2 + zero_bubble}}},
        keys_go_round);
  sweep({{.config = "sweep_llama", .overrides = one_group + s24}, {{6, cp3 + zero3 + full}}}, keys_gathered);
}

TEST(ContextSweep, LongerThanTilesOfAttention) {
  const Overrides long_ones{"train.seq_length=320", "train.global_batch_size=2", "train.micro_batch_size=1"};
  const SweepLimits limits{.steps = 3};
  sweep({{.config = "sweep_gpt", .overrides = long_ones}, {{4, cp4}}}, heads_travel, limits);
  sweep({{.config = "sweep_gpt", .overrides = long_ones + packed_documents}, {{2, cp2}}}, keys_go_round, limits);
  sweep({{.config = "sweep_gpt", .overrides = long_ones + packed_documents}, {{2, cp2}}}, keys_gathered, limits);
}

// Only the first piece has targets, so only the first rank does.
TEST(ContextSweep, TargetsOnOneRank) {
  const ContextSweep one{{.config = "sweep_llama", .counted_targets = 3}, {{2, cp2}, {4, cp2 + pp2}, {4, cp2 + zero3}}};
  sweep(one, keys_go_round);
}

// Parts of attention, rounded to 16 bits, are merged and summed in 32.
TEST(ContextSlow, Bf16) {
  const SweepLimits limits{.loss = 5e-3, .norm = 5e-2, .gradients = DType::bf16, .slack = 8};
  const Overrides bf16{"mixed_precision.precision=bf16"}, s16{"train.seq_length=16"};
  for (const Overrides& model : {bf16 + s16 + Overrides{"train.micro_batch_size=1"}, bf16 + s16 + packed_documents}) {
    const ContextSweep one{{.config = "sweep_gpt", .overrides = model},
                           {{2, cp2}, {4, cp4}, {4, cp2 + tp2 + sp + full}}};
    for (const Overrides& how : {heads_travel, keys_gathered, keys_go_round}) sweep(one, how, limits);
  }
}

// Whole documents, on as many ranks as each needs.
class DynamicSweepSlow : public testing::TestWithParam<DynamicSweep> {};

void sweep(const DynamicSweep& one, const Overrides& how) {
  sweep({one.alone, one.layouts}, dynamic + how, {.same_rows = false, .degrees = one.degrees});
}

TEST_P(DynamicSweepSlow, HeadsTravel) { sweep(GetParam(), heads_travel); }
TEST_P(DynamicSweepSlow, KeysAreGathered) { sweep(GetParam(), keys_gathered); }
TEST_P(DynamicSweepSlow, KeysGoRound) { sweep(GetParam(), keys_go_round); }

TEST(ContextSweep, AllDegreesAreUsed) {
  const DynamicSweep one = dynamic_sweeps()[1];
  sweep({one.alone, {{4, cp4}}, one.degrees}, keys_gathered);
}

// Degrees are whatever divides the ranks.
TEST(ContextSweep, DynamicOverSix) {
  const Overrides cp6{"dist.context_parallel_size=6"}, one_sequence{"train.micro_batch_size=1"};
  const ContextSweep one{{.config = "sweep_llama", .overrides = packed_documents + s24 + one_sequence}, {{6, cp6}}};
  const SweepLimits limits{.degrees = 1u << 1 | 1u << 2 | 1u << 3 | 1u << 6};
  sweep(one, dynamic + keys_go_round, limits);
  sweep(one, dynamic + keys_gathered, limits);
}

TEST(ContextSlow, DynamicMtp) {
  const Overrides two_ahead{"model.mtp_num_layers=2"}, s16{"train.seq_length=16", "train.micro_batch_size=1"};
  const ContextSweep one{{.config = "sweep_llama", .overrides = packed_documents + s16 + two_ahead},
                         {{2, cp2}, {4, cp4}, {4, cp2 + pp2}}};
  sweep(one, dynamic + keys_go_round, {.degrees = 1u << 1 | 1u << 2});
}

INSTANTIATE_TEST_SUITE_P(Models, DynamicSweepSlow, testing::ValuesIn(dynamic_sweeps()));
INSTANTIATE_TEST_SUITE_P(Models, ContextSweepSlow, testing::ValuesIn(context_sweeps()));

}  // namespace
}  // namespace tera::test
