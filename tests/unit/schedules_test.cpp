// Schedules of whole pipelines against formulas and against the longest chain in a graph of their dependencies.

#include "tera/pipeline/schedules.h"

#include <gtest/gtest.h>

#include "tera/base/error.h"
#include "tera/pipeline/check.h"
#include "tests/support/dependency_graph.h"
#include "tests/support/expect_error.h"

namespace tera::test {
namespace {

using enum Act;

constexpr ActionCosts f_like_bw{1, 0.5, 0.5};

std::size_t index(int i) { return static_cast<std::size_t>(i); }

bool refused(const PipelineSchedule& schedule) {
  try {
    check(schedule);
    return false;
  } catch (const Error&) {
    return true;
  }
}

TEST(Schedules, OneStageIsAsBefore) {
  for (const int microbatches : {1, 2, 7}) {
    const auto schedule = one_f_one_b(1, microbatches);
    EXPECT_EQ(schedule.ranks.at(0), one_stage(microbatches));
    EXPECT_EQ(check(schedule).ranks.at(0).chunks.at(0).pools, check(one_stage(microbatches), microbatches));
  }
}

TEST(Schedules, OneFOneBByHand) {
  const auto schedule = one_f_one_b(3, 4);
  EXPECT_EQ(schedule.ranks[0], (Schedule{{F, 0}, {F, 1}, {F, 2}, {BW, 0}, {F, 3}, {BW, 1}, {BW, 2}, {BW, 3}}));
  EXPECT_EQ(schedule.ranks[1], (Schedule{{F, 0}, {F, 1}, {BW, 0}, {F, 2}, {BW, 1}, {F, 3}, {BW, 2}, {BW, 3}}));
  EXPECT_EQ(schedule.ranks[2], (Schedule{{F, 0}, {BW, 0}, {F, 1}, {BW, 1}, {F, 2}, {BW, 2}, {F, 3}, {BW, 3}}));
}

TEST(Schedules, OneFOneBFormulas) {
  for (int p = 1; p <= 16; ++p)
    for (int m = 1; m <= 64; m += m < 20 ? 1 : 11) {
      const auto schedule = one_f_one_b(p, m);
      for (const ActionCosts& costs : {f_like_bw, ActionCosts{}}) {
        const auto report = check(schedule, costs);
        EXPECT_DOUBLE_EQ(report.makespan, (m + p - 1) * (costs.F + costs.B + costs.W));
        EXPECT_NEAR(report.bubble, (p - 1.0) / (m + p - 1), 1e-12);
        for (int rank = 0; rank < p; ++rank) {
          const int in_flight = std::min(m, p - rank);
          EXPECT_EQ(report.ranks[index(rank)].chunks[0].pools, (Pools{in_flight, in_flight, 1}));
          EXPECT_EQ(report.ranks[index(rank)].chunks_in_flight, in_flight);
          EXPECT_LE(report.ranks[index(rank)].chunks[0].received_x, rank > 0 ? 2 : 0);
          EXPECT_LE(report.ranks[index(rank)].chunks[0].received_dy, rank + 1 < p ? 2 : 0);
        }
      }
    }
}

// Rank 0 of two is three microbatches ahead: F3 runs with BW0, whose gradient comes from F2 with BW0 of rank 1.
TEST(Schedules, TogetherByHand) {
  const auto with = [](int microbatch) { return Action{.act = F, .microbatch = microbatch, .with_next = true}; };
  const auto two = one_f_one_b(2, 5, /*together=*/true);
  EXPECT_EQ(two.ranks[0],
            (Schedule{{F, 0}, {F, 1}, {F, 2}, with(3), {BW, 0}, with(4), {BW, 1}, {BW, 2}, {BW, 3}, {BW, 4}}));
  EXPECT_EQ(two.ranks[1],
            (Schedule{{F, 0}, with(1), {BW, 0}, with(2), {BW, 1}, with(3), {BW, 2}, with(4), {BW, 3}, {BW, 4}}));
  EXPECT_EQ(one_f_one_b(1, 3, true).ranks[0], (Schedule{{F, 0}, with(1), {BW, 0}, with(2), {BW, 1}, {BW, 2}}));
  EXPECT_EQ(one_f_one_b(1, 1, true).ranks[0], one_stage(1));
}

int pairs(const PipelineSchedule& schedule) {
  int pairs = 0;
  for (const Schedule& actions : schedule.ranks)
    for (const Action& action : actions) pairs += action.with_next ? 1 : 0;
  return pairs;
}

// Pairing keeps the actions, in an order that can run; with many microbatches almost all are in pairs, and the schedule
// is hardly longer than without: a pair on the last rank waits once for the first microbatch to come down.
TEST(Schedules, TogetherCanRun) {
  for (int p = 1; p <= 8; ++p)
    for (const int m : {1, 2, 3, 5, 8, 13, 40}) {
      const auto schedule = one_f_one_b(p, m, true);
      const auto report = check(schedule);
      EXPECT_GE(pairs(schedule), p * (m - 2 * p)) << p << " " << m;
      EXPECT_LE(report.makespan, check(one_f_one_b(p, m)).makespan + 3.0 * p) << p << " " << m;
      EXPECT_EQ(longest_chain(schedule, {}), report.makespan) << p << " " << m;
      for (int rank = 0; rank < p; ++rank)
        EXPECT_EQ(report.ranks[index(rank)].chunks_in_flight, std::min(m, 2 * (p - rank))) << p << " " << m;
    }
  for (int p = 1; p <= 5; ++p)
    for (const int v : {2, 3, 4})
      for (const int group : {p, p + 1, 2 * p + 3})
        for (int m = 1; m <= 17; ++m) {
          const auto schedule = interleaved(p, v, m, group, true);
          EXPECT_LE(longest_chain(schedule, {}).value_or(1e9), check(schedule).makespan)
              << p << " " << v << " " << m << " " << group;
          if (m % p == 0 && group == p) {
            EXPECT_GE(pairs(schedule), p * (v * m - 2 * p - v * p)) << p << " " << v << " " << m;
          }
        }
}

// Splitting B and W fills the end of the pipeline here, too.
TEST(Schedules, TogetherWithZeroBubble) {
  for (int p = 2; p <= 6; ++p)
    for (const int m : {1, 2, 4, 9, 16, 40}) {
      const auto schedule = zero_bubble_h1(p, m, {}, true);
      const auto report = check(schedule);
      EXPECT_EQ(longest_chain(schedule, {}), report.makespan) << p << " " << m;
      EXPECT_GE(pairs(schedule), p * (m - 2 * p)) << p << " " << m;
      EXPECT_LE(report.makespan, check(one_f_one_b(p, m, true)).makespan) << p << " " << m;
      for (const RankReport& rank : report.ranks) EXPECT_LE(rank.chunks_in_flight, 2 * p) << p << " " << m;
    }
}

// The V schedule keeps its order; actions that can start together do.
TEST(Schedules, PairsOfTheV) {
  for (int p = 2; p <= 6; ++p)
    for (const int m : {1, 2, 4, 9, 16}) {
      auto paired = zero_bubble_v(p, m, {}, true);
      EXPECT_LE(longest_chain(paired, {}).value_or(1e9), check(paired).makespan) << p << " " << m;
      if (m >= 2 * p) {
        EXPECT_GE(pairs(paired), m - 2) << p << " " << m;
      }
      for (Schedule& actions : paired.ranks)
        for (Action& action : actions) action.with_next = false;
      EXPECT_EQ(paired.ranks, zero_bubble_v(p, m).ranks);
    }
}

// Rank 0 is four ahead (twice its distance to the end and one group), rank 1 two.
TEST(Schedules, InterleavedByHand) {
  const auto schedule = interleaved(2, 2, 4, 2);
  EXPECT_EQ(schedule.ranks[0], (Schedule{{F, 0, 0},
                                         {F, 1, 0},
                                         {F, 0, 1},
                                         {F, 1, 1},
                                         {F, 2, 0},
                                         {BW, 0, 1},
                                         {F, 3, 0},
                                         {BW, 1, 1},
                                         {F, 2, 1},
                                         {BW, 0, 0},
                                         {F, 3, 1},
                                         {BW, 1, 0},
                                         {BW, 2, 1},
                                         {BW, 3, 1},
                                         {BW, 2, 0},
                                         {BW, 3, 0}}));
  EXPECT_EQ(schedule.ranks[1], (Schedule{{F, 0, 0},
                                         {F, 1, 0},
                                         {F, 0, 1},
                                         {BW, 0, 1},
                                         {F, 1, 1},
                                         {BW, 1, 1},
                                         {F, 2, 0},
                                         {BW, 0, 0},
                                         {F, 3, 0},
                                         {BW, 1, 0},
                                         {F, 2, 1},
                                         {BW, 2, 1},
                                         {F, 3, 1},
                                         {BW, 3, 1},
                                         {BW, 2, 0},
                                         {BW, 3, 0}}));
}

TEST(Schedules, InterleavedFormulas) {
  for (const int p : {1, 2, 3, 4, 5, 8, 16})
    for (int v = 2; v <= 8; ++v)
      for (const int rounds : {1, 2, 4}) {
        const int m = p * rounds;
        if (p * v * m > 4096) continue;
        const auto schedule = interleaved(p, v, m, p);
        const auto report = check(schedule, f_like_bw);
        EXPECT_DOUBLE_EQ(report.makespan, 2.0 * (v * m + p - 1)) << p << " " << v << " " << m;
        EXPECT_NEAR(report.bubble, (p - 1.0) / (v * m + p - 1), 1e-12);
        for (int rank = 0; rank < p; ++rank)
          EXPECT_EQ(report.ranks[index(rank)].chunks_in_flight, std::min(v * m, 2 * (p - 1 - rank) + (v - 1) * p + 1));
      }
}

TEST(Schedules, InterleavedTakesAnyNumberOfMicrobatches) {
  int shapes = 0;
  for (int p = 1; p <= 9; ++p)
    for (const int v : {1, 2, 3, 8})
      for (const int group : {p, p + 1, 2 * p + 3})
        for (const int m : {1, 2, 3, 5, 7, 8, 11, 16, 23}) {
          if (p * v * m > 700) continue;
          const auto schedule = interleaved(p, v, m, group);
          const auto report = check(schedule);
          EXPECT_DOUBLE_EQ(report.makespan, longest_chain(schedule, {}).value());
          EXPECT_LE(report.ranks[0].chunks_in_flight, 2 * (p - 1) + (v - 1) * group + 1);
          ++shapes;
        }
  EXPECT_GT(shapes, 700);
}

TEST(Schedules, LargestShapes) {
  for (const auto& schedule : {interleaved(16, 8, 64, 16), interleaved(16, 8, 64, 32), interleaved(16, 8, 50, 23)})
    EXPECT_FALSE(refused(schedule));
}

TEST(Schedules, GroupsSmallerThanThePipelineAreRefused) {
  const auto message = message_of<UserError>([] { interleaved(4, 2, 8, 3); });
  EXPECT_TRUE(contains(message, "microbatch_group_size_per_vp_stage is 3, valid are 4")) << message;
  EXPECT_THROW(one_f_one_b(0, 1), UserError);
  EXPECT_THROW(one_f_one_b(2, 0), UserError);
  EXPECT_THROW(interleaved(2, 0, 1, 2), UserError);
  EXPECT_THROW(forward_only(Placement{2, 3, PlacementKind::v}, 1), UserError);
  EXPECT_THROW(one_f_one_b(1000, 2'000'000'000), UserError);
}

TEST(Schedules, ZeroBubbleH1) {
  for (int p = 1; p <= 16; ++p)
    for (const int m : {1, 2, 3, 4, 6, 8, 11, 16, 24, 33}) {
      const auto schedule = zero_bubble_h1(p, m);
      const auto report = check(schedule);
      if (m >= p)
        EXPECT_DOUBLE_EQ(report.makespan, 3.0 * m + p - 1) << p << " " << m;
      else
        EXPECT_LE(report.makespan, 3.0 * (m + p - 1)) << p << " " << m;
      for (const auto& rank : report.ranks) EXPECT_LE(rank.chunks_in_flight, std::min(m, p));
    }
}

TEST(Schedules, ZeroBubbleV) {
  for (int p = 1; p <= 10; ++p)
    for (const int m : {1, 2, 3, 4, 6, 8, 11, 16, 24}) {
      const auto schedule = zero_bubble_v(p, m);
      const auto report = check(schedule);
      const auto h1 = check(zero_bubble_h1(p, m));
      EXPECT_GE(report.makespan, 6.0 * m + p - 1);  // the last rank cannot begin before the others have
      if (m == p || m >= 2 * p - 1) {
        EXPECT_DOUBLE_EQ(report.makespan, 6.0 * m + p - 1) << p << " " << m;
      }
      if (p > 1) {
        EXPECT_LT(report.bubble, h1.bubble) << p << " " << m;
      }
      for (const auto& rank : report.ranks) {
        EXPECT_LE(rank.chunks[0].pools.f_to_w + rank.chunks[1].pools.f_to_w, 2 * p);
        EXPECT_LE(rank.chunks[0].pools.f_to_b + rank.chunks[1].pools.f_to_b, 2 * p);
      }
      EXPECT_DOUBLE_EQ(report.makespan, longest_chain(schedule, {}).value());
    }
}

// Whatever actions cost, splitting B and W never makes a pipeline slower than 1F1B.
TEST(Schedules, ZeroBubbleWithOtherCosts) {
  for (const ActionCosts& costs : {ActionCosts{1, 1.4, 0.7}, ActionCosts{1, 2, 0.5}, ActionCosts{1, 0.9, 1.3, 0.2}})
    for (const int p : {2, 3, 4, 8})
      for (const int m : {2, 7, 16}) {
        const double plain = check(one_f_one_b(p, m), costs).makespan;
        EXPECT_LE(check(zero_bubble_h1(p, m, costs), costs).makespan, plain) << p << " " << m;
        EXPECT_LE(check(zero_bubble_v(p, m, costs), costs).makespan / 2, plain) << p << " " << m;
      }
}

TEST(Schedules, ForwardOnly) {
  for (int p = 1; p <= 16; ++p)
    for (const int v : {1, 2, 3, 8})
      for (const int m : {1, 3, p, 2 * p, 2 * p + 1}) {
        const auto report = check(forward_only(p, v, m));
        if (m % p == 0)
          EXPECT_DOUBLE_EQ(report.makespan, v * m + p - 1.0);
        else
          EXPECT_LE(report.makespan, v * (m + p) + p - 1.0);
        for (const auto& rank : report.ranks)
          for (const auto& chunk : rank.chunks) EXPECT_EQ(chunk.pools, (Pools{1, 0, 0}));
        const auto in_v = check(forward_only(Placement{p, 2, PlacementKind::v}, m));
        EXPECT_DOUBLE_EQ(in_v.makespan, 2.0 * (m + p - 1)) << p << " " << m;
      }
}

}  // namespace
}  // namespace tera::test
