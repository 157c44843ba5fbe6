// Context parallelism (Ulysses, all-gather and ring attention; dynamic): each layout trains as one rank does. The full
// lists are for make slow.

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
  run_on_threads(one.alone, limits.steps, alone);
  for (const auto& [ranks, layout] : one.layouts) {
    SweepCase shared = one.alone;
    shared.ranks = ranks;
    shared.overrides = shared.overrides + layout + how;
    expect_like_one_rank(shared, alone, limits);
    if (testing::Test::HasFatalFailure()) return;
  }
}

class ContextSweepSlow : public testing::TestWithParam<ContextSweep> {};

TEST_P(ContextSweepSlow, Ulysses) { sweep(GetParam(), ulysses); }
TEST_P(ContextSweepSlow, AllGather) { sweep(GetParam(), cp_all_gather); }
TEST_P(ContextSweepSlow, Ring) { sweep(GetParam(), cp_ring); }

const Overrides s24{"train.seq_length=24"}, cp3{"dist.context_parallel_size=3"};

// The number of context-parallel ranks need not divide the heads, except for Ulysses.
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
    sweep(one, cp_all_gather);
    sweep(one, cp_ring);
  }
}

TEST(ContextSweep, OneHeadOnThreeRanks) {
  const Overrides one_group{"model.num_query_groups=1"};
  sweep({{.config = "sweep_llama", .overrides = one_group + s24 + packed_documents},
         {{3, cp3}, {6, cp3 + pp2 + zero_bubble}}},
        cp_ring);
  sweep({{.config = "sweep_llama", .overrides = one_group + s24}, {{6, cp3 + zero3 + full}}}, cp_all_gather);
}

TEST(ContextSweep, LongerThanTilesOfAttention) {
  const Overrides long_ones{"train.seq_length=320", "train.global_batch_size=2", "train.micro_batch_size=1"};
  const SweepLimits limits{.steps = 3};
  sweep({{.config = "sweep_gpt", .overrides = long_ones}, {{4, cp4}}}, ulysses, limits);
  sweep({{.config = "sweep_gpt", .overrides = long_ones + packed_documents}, {{2, cp2}}}, cp_ring, limits);
  sweep({{.config = "sweep_gpt", .overrides = long_ones + packed_documents}, {{2, cp2}}}, cp_all_gather, limits);
}

// Only the first chunk of the zigzag split has targets, so only the first rank has any.
TEST(ContextSweep, TargetsOnOneRank) {
  const ContextSweep one{{.config = "sweep_llama", .counted_targets = 3}, {{2, cp2}, {4, cp2 + pp2}, {4, cp2 + zero3}}};
  sweep(one, cp_ring);
}

// Parts of attention, rounded to 16 bits, are merged and summed in 32.
TEST(ContextSlow, Bf16) {
  const SweepLimits limits{.loss = 5e-3, .norm = 5e-2, .gradients = DType::bf16, .slack = 8};
  const Overrides bf16{"mixed_precision.precision=bf16"}, s16{"train.seq_length=16"};
  for (const Overrides& model : {bf16 + s16 + Overrides{"train.micro_batch_size=1"}, bf16 + s16 + packed_documents}) {
    const ContextSweep one{{.config = "sweep_gpt", .overrides = model},
                           {{2, cp2}, {4, cp4}, {4, cp2 + tp2 + sp + full}}};
    for (const Overrides& how : {ulysses, cp_all_gather, cp_ring}) sweep(one, how, limits);
  }
}

// Dynamic context parallelism: documents on as many ranks as each needs.
class DynamicSweepSlow : public testing::TestWithParam<DynamicSweep> {};

void sweep(const DynamicSweep& one, const Overrides& how) {
  sweep({one.alone, one.layouts}, dynamic + how, {.same_rows = false, .degrees = one.degrees});
}

TEST_P(DynamicSweepSlow, Ulysses) { sweep(GetParam(), ulysses); }
TEST_P(DynamicSweepSlow, AllGather) { sweep(GetParam(), cp_all_gather); }
TEST_P(DynamicSweepSlow, Ring) { sweep(GetParam(), cp_ring); }

TEST(ContextSweep, AllDegreesAreUsed) {
  const DynamicSweep one = dynamic_sweeps()[1];
  sweep({one.alone, {{4, cp4}}, one.degrees}, cp_all_gather);
}

// A degree is any divisor of the number of ranks.
TEST(ContextSweep, DynamicOverSix) {
  const Overrides cp6{"dist.context_parallel_size=6"}, one_sequence{"train.micro_batch_size=1"};
  const ContextSweep one{{.config = "sweep_llama", .overrides = packed_documents + s24 + one_sequence}, {{6, cp6}}};
  const SweepLimits limits{.degrees = 1u << 1 | 1u << 2 | 1u << 3 | 1u << 6};
  sweep(one, dynamic + cp_ring, limits);
  sweep(one, dynamic + cp_all_gather, limits);
}

TEST(ContextSlow, DynamicMtp) {
  const Overrides two_mtp{"model.mtp_num_layers=2"}, s16{"train.seq_length=16", "train.micro_batch_size=1"};
  const ContextSweep one{{.config = "sweep_llama", .overrides = packed_documents + s16 + two_mtp},
                         {{2, cp2}, {4, cp4}, {4, cp2 + pp2}}};
  sweep(one, dynamic + cp_ring, {.degrees = 1u << 1 | 1u << 2});
}

INSTANTIATE_TEST_SUITE_P(Models, DynamicSweepSlow, testing::ValuesIn(dynamic_sweeps()));
INSTANTIATE_TEST_SUITE_P(Models, ContextSweepSlow, testing::ValuesIn(context_sweeps()));

}  // namespace
}  // namespace tera::test
