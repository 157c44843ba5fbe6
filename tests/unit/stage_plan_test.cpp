// The buffers of a rank's plan, by hand and against the checker's bounds.

#include "tera/pipeline/stage_plan.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tera/base/error.h"
#include "tera/pipeline/check.h"
#include "tera/pipeline/stage_memory.h"

namespace tera::test {
namespace {

using enum Act;

std::size_t index(int i) { return static_cast<std::size_t>(i); }

TEST(StagePlan, AloneNothingIsSaid) {
  const StagePlan plan = plan_alone(one_stage(3));
  EXPECT_EQ(plan.actions, one_stage(3));
  EXPECT_EQ(plan.microbatches, 3);
  EXPECT_EQ(plan.chunks, (std::vector<ChunkPlan>{{{1, 1, 1}, 0, 0}}));
  for (const Exchange& exchange : plan.exchanges) EXPECT_TRUE(exchange.empty());
  EXPECT_EQ(plan_forward_alone(2).chunks, (std::vector<ChunkPlan>{{{1, 0, 0}, 0, 0}}));
}

TEST(StagePlan, MicroBatchesOutOfOrderAreRefused) {
  EXPECT_THROW(plan_alone({{F, 1}, {BW, 1}, {F, 0}, {BW, 0}}), Error);
  EXPECT_THROW(plan_alone({{F, 0}, {F, 1}, {BW, 1}, {BW, 0}}), Error);
  EXPECT_THROW(make_stage_plan(one_f_one_b(2, 2), 2), Error);
}

// rank 0: F0 F1 BW0 F2 BW1 BW2. rank 1: F0 BW0 F1 BW1 F2 BW2; the receive of x1, which is made while F0 runs, is posted
// before F0, that of x2 before F1.
TEST(StagePlan, OneFOneBByHand) {
  const auto schedule = one_f_one_b(2, 3);
  EXPECT_EQ(make_stage_plan(schedule, 0).chunks, (std::vector<ChunkPlan>{{{2, 2, 1}, 0, 1}}));
  EXPECT_EQ(make_stage_plan(schedule, 1).chunks, (std::vector<ChunkPlan>{{{1, 1, 1}, 2, 0}}));
}

// Two chunks on one rank: x of the second is there from F of the first to BW of the second, dy of the first from BW of
// the second on.
TEST(StagePlan, NeighboursOnTheSameRankByHand) {
  const PipelineSchedule schedule{
      .placement = {1, 2},
      .microbatches = 2,
      .ranks = {{{F, 0, 0}, {F, 1, 0}, {F, 0, 1}, {F, 1, 1}, {BW, 0, 1}, {BW, 1, 1}, {BW, 0, 0}, {BW, 1, 0}}}};
  const StagePlan plan = make_stage_plan(schedule, 0);
  EXPECT_EQ(plan.chunks, (std::vector<ChunkPlan>{{{2, 2, 1}, 0, 2}, {{2, 2, 1}, 2, 0}}));
  for (const Exchange& exchange : plan.exchanges) EXPECT_TRUE(exchange.empty());
}

// Keeping a buffer until its last reader never needs more than copying it needs, and needs at least what is kept.
void expect_within_bounds(const PipelineSchedule& schedule, int rank) {
  const ScheduleReport report = check(schedule);
  const StagePlan plan = make_stage_plan(schedule, rank);
  const Placement& placement = schedule.placement;
  for (int chunk = 0; chunk < placement.chunks; ++chunk) {
    const ChunkPlan& mine = plan.chunks[index(chunk)];
    const ChunkNeeds& needs = report.ranks[index(rank)].chunks[index(chunk)];
    const int kept_x = schedule.backward ? needs.pools.f_to_b : 0, kept_dy = needs.pools.b_to_w;
    const int virtual_stage = placement.virtual_stage(rank, chunk);
    const bool has_x = virtual_stage > 0, has_dy = virtual_stage + 1 < placement.virtual_stages() && schedule.backward;
    const bool x_is_sent = has_x && placement.rank_of(virtual_stage - 1) != rank;
    const bool dy_is_sent = has_dy && placement.rank_of(virtual_stage + 1) != rank;
    EXPECT_EQ(mine.pools, needs.pools);
    EXPECT_TRUE(has_x ? mine.x >= std::max(1, kept_x) : mine.x == 0);
    EXPECT_TRUE(has_dy ? mine.dy >= std::max(1, kept_dy) : mine.dy == 0);
    EXPECT_TRUE(!x_is_sent || mine.x <= needs.received_x + kept_x);
    EXPECT_TRUE(!dy_is_sent || mine.dy <= needs.received_dy + kept_dy);
  }
}

TEST(StagePlan, BuffersAreWithinTheBoundsOfTheChecker) {
  for (const int stages : {2, 4, 7})
    for (const int microbatches : {1, 3, 9, 20})
      for (const auto& schedule : {one_f_one_b(stages, microbatches), zero_bubble_h1(stages, microbatches),
                                   zero_bubble_v(stages, microbatches), interleaved(stages, 3, microbatches, stages),
                                   forward_only(stages, 2, microbatches)})
        for (int rank = 0; rank < stages; ++rank) expect_within_bounds(schedule, rank);
}

TEST(StageMemory, HasWhatBothPlansNeed) {
  const Placement placement{2, 2};
  Stage stage{.chunks = {{}, {}},
              .training = make_stage_plan(interleaved(2, 2, 4, 2), 0),
              .evaluation = make_stage_plan(forward_only(placement, 4), 0)};
  std::vector<std::string> names;
  StageMemory::measuring(stage).visit([&](std::string_view name, std::span<const Arena> arenas) {
    names.push_back(std::string(name) + " x " + std::to_string(arenas.size()));
  });
  const Pools first = stage.training.chunks[0].pools, second = stage.training.chunks[1].pools;
  EXPECT_EQ(names, (std::vector<std::string>{"activations, F to B, chunk 0 x " + std::to_string(first.f_to_b),
                                             "activations, F to B, chunk 1 x " + std::to_string(second.f_to_b),
                                             "activations, F to W, chunk 0 x " + std::to_string(first.f_to_w),
                                             "activations, F to W, chunk 1 x " + std::to_string(second.f_to_w),
                                             "activations, B to W, chunk 0 x 1", "activations, B to W, chunk 1 x 1",
                                             "pipeline buffers x 1", "recompute x 1", "scratch x 1"}));
  stage.training = {};  // only forward passes
  StageMemory::measuring(stage).visit([&](std::string_view name, std::span<const Arena> arenas) {
    EXPECT_EQ(arenas.size(), name.starts_with("activations") && !name.starts_with("activations, F to B") ? 0 : 1);
  });
}

}  // namespace
}  // namespace tera::test
