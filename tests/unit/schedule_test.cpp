#include <gtest/gtest.h>

#include "tera/base/error.h"
#include "tera/pipeline/schedule.h"
#include "tests/support/expect_error.h"

namespace tera::test {
namespace {

using enum Act;

TEST(Schedule, OneStageRunsEachMicrobatchToItsEnd) {
  EXPECT_EQ(one_stage(2), (Schedule{{F, 0}, {BW, 0}, {F, 1}, {BW, 1}}));
  EXPECT_TRUE(one_stage(0).empty());
}

// Counted by hand: microbatches between F and the end of B; between F and the end of W; between the start of B and the
// end of W.
TEST(Schedule, PoolsAreWhatIsInFlight) {
  struct Case {
    Schedule schedule;
    int microbatches;
    Pools pools;
  };
  const Case cases[] = {
      {one_stage(4), 4, {1, 1, 1}},
      {{}, 0, {0, 0, 0}},
      {{{F, 0}, {B, 0}, {W, 0}}, 1, {1, 1, 1}},
      {{{F, 0}, {F, 1}, {BW, 0}, {BW, 1}}, 2, {2, 2, 1}},
      {{{F, 0}, {F, 1}, {B, 0}, {B, 1}, {W, 0}, {W, 1}}, 2, {2, 2, 2}},
      // W is late, so F to B is needed once only while F to W and B to W grow.
      {{{F, 0}, {B, 0}, {F, 1}, {B, 1}, {F, 2}, {B, 2}, {W, 0}, {W, 1}, {W, 2}}, 3, {1, 3, 3}},
      {{{F, 0}, {B, 0}, {F, 1}, {BW, 1}, {W, 0}}, 2, {1, 2, 2}},
      {{{F, 0}, {F, 1}, {F, 2}, {BW, 0}, {F, 3}, {BW, 1}, {BW, 2}, {BW, 3}}, 4, {3, 3, 1}},
      {{{F, 0}, {F, 1}, {B, 0}, {F, 2}, {B, 1}, {W, 0}, {B, 2}, {W, 1}, {W, 2}}, 3, {2, 3, 2}},
      {{{F, 1}, {F, 0}, {BW, 1}, {BW, 0}}, 2, {2, 2, 1}},  // microbatches may come in any order
  };
  for (const Case& c : cases) {
    const Pools pools = check(c.schedule, c.microbatches);
    EXPECT_EQ(pools, c.pools) << pools.f_to_b << " " << pools.f_to_w << " " << pools.b_to_w;
  }
}

TEST(Schedule, RejectsWhatCannotRun) {
  const auto message = [](const Schedule& schedule, int microbatches) {
    return message_of<Error>([&] { check(schedule, microbatches); });
  };
  for (const Schedule& out_of_order :
       {Schedule{{BW, 0}}, Schedule{{B, 0}}, Schedule{{W, 0}}, Schedule{{F, 0}, {F, 0}}, Schedule{{F, 0}, {W, 0}},
        Schedule{{F, 0}, {B, 0}, {B, 0}}, Schedule{{F, 0}, {B, 0}, {BW, 0}}, Schedule{{F, 0}, {BW, 0}, {W, 0}},
        Schedule{{F, 0}, {BW, 0}, {F, 0}}})
    EXPECT_TRUE(contains(message(out_of_order, 1), "microbatch 0 out of order"));
  for (const Schedule& unfinished : {Schedule{}, Schedule{{F, 0}}, Schedule{{F, 0}, {B, 0}}})
    EXPECT_TRUE(contains(message(unfinished, 1), "unfinished"));
  EXPECT_TRUE(contains(message(one_stage(1), 2), "unfinished"));  // the second never runs
  EXPECT_TRUE(contains(message(one_stage(3), 2), "microbatch 2 of 2"));
  EXPECT_TRUE(contains(message({{F, -1}}, 2), "microbatch -1 of 2"));
}

}  // namespace
}  // namespace tera::test
