// The checker against schedules broken on purpose, and the exchanges between ranks.

#include "tera/pipeline/check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

#include "tera/base/error.h"
#include "tera/pipeline/exchange.h"
#include "tests/support/dependency_graph.h"
#include "tests/support/expect_error.h"
#include "tests/support/paths.h"

namespace tera::test {
namespace {

using enum Act;

std::size_t index(int i) { return static_cast<std::size_t>(i); }

bool ascending(const PipelineSchedule& schedule) {
  for (const auto& actions : schedule.ranks) {
    std::map<std::pair<int, int>, int> next;  // chunk and kind
    for (const auto& a : actions) {
      if (a.act == F && a.microbatch != next[{a.chunk, 0}]++) return false;
      if ((a.act == B || a.act == BW) && a.microbatch != next[{a.chunk, 1}]++) return false;
      if ((a.act == W || a.act == BW) && a.microbatch != next[{a.chunk, 2}]++) return false;
    }
  }
  return true;
}

bool refused(const PipelineSchedule& schedule) {
  try {
    check(schedule);
    return false;
  } catch (const Error&) {
    return true;
  }
}

std::vector<PipelineSchedule> some_of_each() {
  return {one_f_one_b(4, 6),       interleaved(3, 2, 6, 3),
          interleaved(2, 3, 5, 4), zero_bubble_h1(4, 7),
          zero_bubble_v(3, 5),     forward_only(3, 2, 5),
          interleaved(2, 2, 4, 2), forward_only(Placement{3, 2, PlacementKind::v}, 4)};
}

TEST(ScheduleCheck, PairsThatCannotBe) {
  const auto with = [](int microbatch) { return Action{.act = F, .microbatch = microbatch, .with_next = true}; };
  const auto alone = [](Schedule actions) {
    return PipelineSchedule{.placement = {}, .microbatches = 2, .ranks = {std::move(actions)}};
  };
  EXPECT_FALSE(refused(alone({{F, 0}, with(1), {BW, 0}, {BW, 1}})));
  EXPECT_TRUE(refused(alone({with(0), {BW, 0}, {F, 1}, {BW, 1}}))) << "its own gradient";
  EXPECT_TRUE(refused(alone({with(0), {F, 1}, {BW, 0}, {BW, 1}}))) << "two F";
  EXPECT_TRUE(refused(alone({{F, 0}, {F, 1}, {B, 0}, {.act = W, .microbatch = 0, .with_next = true}, {BW, 1}})));
  // BW0 of rank 0 needs that of rank 1, which begins when F1 of rank 0 has ended.
  PipelineSchedule two = one_f_one_b(2, 2, true);
  EXPECT_FALSE(refused(two));
  two.ranks[0] = {{F, 0}, with(1), {BW, 0}, {BW, 1}};
  const std::string message = message_of<Error>([&] { check(two); });
  EXPECT_TRUE(contains(message,
                       "the pipeline's schedule deadlocks: rank 0 at BW0 (waits for its gradients from rank 1); "
                       "rank 1 at F1 (waits for its input from rank 0)"))
      << message;
}

TEST(ScheduleCheck, DroppedAndDoubledActionsAreFound) {
  for (const auto& schedule : some_of_each())
    for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank)
      for (std::size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
        auto dropped = schedule, doubled = schedule, renumbered = schedule;
        dropped.ranks[rank].erase(dropped.ranks[rank].begin() + static_cast<std::ptrdiff_t>(i));
        doubled.ranks[rank].push_back(schedule.ranks[rank][i]);
        ++renumbered.ranks[rank][i].microbatch;
        EXPECT_TRUE(refused(dropped) && refused(doubled) && refused(renumbered)) << rank << " " << i;
      }
}

// Any two actions of a rank are swapped: the checker objects exactly when the graph has a cycle or microbatches leave
// their order.
TEST(ScheduleCheck, SwappedActionsAreJudgedAsByTheGraph) {
  int good = 0, bad = 0;
  for (const auto& schedule : some_of_each()) {
    for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank)
      for (std::size_t i = 0; i < schedule.ranks[rank].size(); ++i)
        for (std::size_t j = 0; j < i; ++j) {
          auto swapped = schedule;
          std::swap(swapped.ranks[rank][i], swapped.ranks[rank][j]);
          const auto chain = ascending(swapped) ? longest_chain(swapped, {}) : std::nullopt;
          EXPECT_EQ(refused(swapped), !chain.has_value());
          if (chain) {
            EXPECT_DOUBLE_EQ(check(swapped).makespan, *chain);
          }
          ++(chain ? good : bad);
        }
  }
  EXPECT_GT(good, 100);
  EXPECT_GT(bad, 1000);
}

TEST(ScheduleCheck, DeadlockNamesRanksAndActions) {
  PipelineSchedule crossed = one_f_one_b(2, 2);
  crossed.ranks = {{{F, 0}, {BW, 0}, {F, 1}, {BW, 1}}, {{F, 0}, {F, 1}, {BW, 0}, {BW, 1}}};
  const auto message = message_of<Error>([&] { check(crossed); });
  EXPECT_TRUE(contains(message,
                       "rank 0 at BW0 (waits for its gradients from rank 1); "
                       "rank 1 at F1 (waits for its input from rank 0)"))
      << message;
}

// Receives are posted just before they are needed, the naive way: the gradients of the second chunk form a cycle, in
// which each rank waits for the one before it to receive its result.
TEST(ScheduleCheck, LateReceivesDeadlock) {
  const auto schedule = interleaved(4, 2, 12, 6);
  EXPECT_FALSE(refused(schedule));
  std::vector<std::vector<Exchange>> posts(4);
  for (int rank = 0; rank < 4; ++rank) {
    const auto& actions = schedule.ranks[index(rank)];
    posts[index(rank)].resize(actions.size() + 1);
    for (std::size_t i = 0; i < actions.size(); ++i) {
      const auto input = input_of(schedule.placement, rank, actions[i]),
                 send = result_of(schedule.placement, rank, actions[i]);
      if (input) posts[index(rank)][i].push_back(*input);
      if (send) posts[index(rank)][i + 1].push_back(*send);
    }
  }
  const auto message = message_of<Error>([&] { check(schedule, {}, posts); });
  EXPECT_TRUE(contains(message, "deadlocks: rank 0 at ")) << message;
  for (const char* rank : {"; rank 1 at ", "; rank 2 at ", "; rank 3 at "})
    EXPECT_TRUE(contains(message, rank)) << message;
}

// Any two neighbouring transfers of a rank are swapped: between the same two ranks the order then never matches.
TEST(ScheduleCheck, TransfersOutOfOrderAreFound) {
  int swaps = 0;
  for (const auto& schedule : some_of_each()) {
    const auto posts = exchanges(schedule);
    const auto peer = [&](int rank, const Message& m) {
      const int from = schedule.placement.rank_of(m.from_stage);
      return from == rank ? schedule.placement.rank_of(m.to_stage()) : from;
    };
    for (int rank = 0; rank < schedule.placement.stages; ++rank)
      for (std::size_t i = 0; i < posts[index(rank)].size(); ++i)
        for (std::size_t k = 1; k < posts[index(rank)][i].size(); ++k) {
          auto swapped = posts;
          auto& exchange = swapped[index(rank)][i];
          if (peer(rank, exchange[k - 1]) != peer(rank, exchange[k])) continue;
          std::swap(exchange[k - 1], exchange[k]);
          EXPECT_THROW(check(schedule, {}, swapped), Error);
          ++swaps;
        }
  }
  EXPECT_GT(swaps, 20);
}

// Exchanges are made for one set of costs; ranks may then be as slow as they like.
TEST(ScheduleCheck, OtherCostsDoNotDeadlock) {
  for (const auto& schedule : some_of_each()) {
    const auto posts = exchanges(schedule);
    for (const ActionCosts& costs :
         {ActionCosts{1, 9, 0.1, 3}, ActionCosts{7, 0.2, 3, 0}, ActionCosts{0.1, 0.1, 20, 50}})
      EXPECT_GE(check(schedule, costs, posts).makespan, ideal_times(schedule, costs).makespan);
  }
}

TEST(ScheduleCheck, TimesByHand) {
  const auto report = check(one_f_one_b(2, 1), {1, 1, 1, 0.5});  // F 0-1, sent until 1.5, F BW until 4.5, sent until 5
  EXPECT_EQ(report.ranks[0].start, (std::vector{0.0, 5.0}));
  EXPECT_EQ(report.ranks[1].start, (std::vector{1.5, 2.5}));
  EXPECT_DOUBLE_EQ(report.makespan, 7);
  EXPECT_DOUBLE_EQ(report.ranks[0].busy, 3);
  EXPECT_DOUBLE_EQ(report.bubble, 1 - 6.0 / 14);
}

TEST(ScheduleCheck, WrongShapesAreFound) {
  auto schedule = one_f_one_b(2, 2);
  schedule.ranks[1][0].chunk = 1;
  EXPECT_TRUE(refused(schedule));
  schedule = one_f_one_b(2, 2);
  schedule.ranks.pop_back();
  EXPECT_TRUE(refused(schedule));
  schedule = one_f_one_b(2, 2);
  schedule.backward = false;
  EXPECT_TRUE(refused(schedule));
}

TEST(Exchanges, ByHand) {
  const auto all = exchanges(one_f_one_b(2, 2));  // rank 0: F0 F1 BW0 BW1, rank 1: F0 BW0 F1 BW1
  const Message x0{false, 0, 0}, x1{false, 0, 1}, dx0{true, 1, 0}, dx1{true, 1, 1};  // made at 1, 2, 4, 7
  EXPECT_EQ(all[0], (std::vector<Exchange>{{}, {x0}, {x1, dx0}, {dx1}, {}}));        // actions end at 1, 2, 6, 9
  EXPECT_EQ(all[1], (std::vector<Exchange>{{x0, x1}, {}, {dx0}, {}, {dx1}}));        // actions end at 2, 4, 5, 7
}

// Every rank has each message once, receives before they are needed and sends after they are made, in one order.
TEST(Exchanges, AllInOneOrder) {
  for (const auto& schedule : some_of_each()) {
    const auto all = exchanges(schedule);
    const auto times = ideal_times(schedule);
    const auto& placement = schedule.placement;
    std::map<Message, double> made_at;
    for (int rank = 0; rank < placement.stages; ++rank)
      for (std::size_t i = 0; i < schedule.ranks[index(rank)].size(); ++i)
        if (const auto m = result_of(placement, rank, schedule.ranks[index(rank)][i]))
          made_at[*m] = times.start[index(rank)][i] + ActionCosts{}.of(schedule.ranks[index(rank)][i].act);
    std::map<Message, int> seen;
    for (int rank = 0; rank < placement.stages; ++rank) {
      const auto& actions = schedule.ranks[index(rank)];
      std::vector<std::pair<double, Message>> posted;
      for (std::size_t i = 0; i <= actions.size(); ++i) {
        for (const auto& m : all[index(rank)][i]) posted.push_back({made_at.at(m), m}), ++seen[m];
        const auto has = [&](const Message& m) {
          return std::find(posted.begin(), posted.end(), std::pair(made_at.at(m), m)) != posted.end();
        };
        const auto input = i < actions.size() ? input_of(placement, rank, actions[i]) : std::nullopt;
        const auto result = i > 0 ? result_of(placement, rank, actions[i - 1]) : std::nullopt;
        if (input && input->crosses_ranks(placement)) {
          EXPECT_TRUE(has(*input));
        }
        if (result && result->crosses_ranks(placement)) {
          EXPECT_TRUE(has(*result));
        }
      }
      EXPECT_TRUE(std::is_sorted(posted.begin(), posted.end()));
    }
    for (const auto& [message, times_seen] : seen) EXPECT_EQ(times_seen, 2);
  }
}

// The last rank makes results of its first chunk at 3, 4 ... 8; rank 0 comes round to its second chunk from 6 to 7.
TEST(Exchanges, WhatComesEarlyIsKept) {
  const auto report = check(interleaved(3, 2, 6, 6));
  EXPECT_EQ(report.ranks[0].chunks[1].received_x, 5);
}

TEST(Picture, ByHand) {
  EXPECT_EQ(picture(one_f_one_b(2, 2)),
            "rank 0  F0 F1 .  .  B0--- .  B1---\n"
            "rank 1  .  F0 B0--- F1 B1--- .  .\n");
}

// The pictures in docs/pipeline.md are these.
TEST(Picture, DocsAreUpToDate) {
  std::ifstream file(source_path("docs/pipeline.md"));
  std::stringstream text;
  text << file.rdbuf();
  for (const auto& schedule : {one_f_one_b(4, 8), interleaved(4, 2, 4, 4), zero_bubble_h1(4, 8), zero_bubble_v(4, 4),
                               forward_only(4, 2, 4), one_f_one_b(4, 8, /*together=*/true)})
    EXPECT_TRUE(contains(text.str(), "```\n" + picture(schedule) + "```\n")) << picture(schedule);
}

}  // namespace
}  // namespace tera::test
