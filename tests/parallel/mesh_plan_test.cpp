// MeshPlan against plain loops over all coordinates, in the order of the name, and against Megatron-LM's examples.

#include "tera/parallel/mesh_plan.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

#include "tera/base/error.h"
#include "tera/parallel/mesh_rules.h"
#include "tests/support/expect_error.h"

namespace tera::test {
namespace {

using Ranks = std::vector<int>;
using Coordinates = std::map<std::string, int>;  // a coordinate for each axis

// The definition: count through the axes, the leftmost fastest. Returns each rank's coordinates.
std::vector<Coordinates> count_through(const std::vector<std::pair<std::string, int>>& axes) {
  std::vector<Coordinates> coordinates(1);
  for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
    std::vector<Coordinates> longer;
    for (const Coordinates& outer : coordinates)
      for (int i = 0; i < axis->second; ++i) {
        Coordinates coordinate = outer;
        coordinate[axis->first] = i;
        longer.push_back(coordinate);
      }
    coordinates = longer;
  }
  return coordinates;
}

struct Brute {
  std::vector<Coordinates> dense, expert;
};

Brute brute_force(const MeshSizes& s) {
  const int etp = s.etp == 0 ? s.tp : s.etp;
  const int dp = s.world / (s.tp * s.cp * s.pp), edp = s.world / (etp * s.ep * s.pp);
  if (s.order == MeshOrder::tp_cp_ep_dp_pp)
    return {count_through({{"tp", s.tp}, {"cp", s.cp}, {"ep", 1}, {"dp", dp}, {"pp", s.pp}}),
            count_through({{"tp", etp}, {"cp", 1}, {"ep", s.ep}, {"dp", edp}, {"pp", s.pp}})};
  return {count_through({{"tp", s.tp}, {"cp", s.cp}, {"ep", 1}, {"pp", s.pp}, {"dp", dp}}),
          count_through({{"tp", etp}, {"cp", 1}, {"ep", s.ep}, {"pp", s.pp}, {"dp", edp}})};
}

// All ranks that differ from this one along the given axes only.
Ranks alike(const std::vector<Coordinates>& coordinates, int rank, const std::vector<std::string>& free) {
  Ranks ranks;
  for (std::size_t r = 0; r < coordinates.size(); ++r) {
    bool same = true;
    for (const auto& [axis, value] : coordinates[static_cast<std::size_t>(rank)])
      if (std::find(free.begin(), free.end(), axis) == free.end()) same = same && coordinates[r].at(axis) == value;
    if (same) ranks.push_back(static_cast<int>(r));
  }
  return ranks;
}

void compare_rank(const MeshPlan& plan, const Brute& brute, int rank) {
  const Coordinates& dense = brute.dense[static_cast<std::size_t>(rank)];
  const Coordinates& expert = brute.expert[static_cast<std::size_t>(rank)];
  const Coord c = plan.coord(rank);
  EXPECT_EQ(c, (Coord{dense.at("tp"), dense.at("cp"), dense.at("dp"), dense.at("pp"), expert.at("tp"), expert.at("ep"),
                      expert.at("dp")}));
  EXPECT_EQ(dense.at("pp"), expert.at("pp"));
  EXPECT_EQ(plan.rank(c), rank);
  EXPECT_EQ(plan.expert_rank(c), rank);
  EXPECT_EQ(plan.members(Axis::tp, rank), alike(brute.dense, rank, {"tp"}));
  EXPECT_EQ(plan.members(Axis::cp, rank), alike(brute.dense, rank, {"cp"}));
  EXPECT_EQ(plan.members(Axis::dp, rank), alike(brute.dense, rank, {"dp"}));
  EXPECT_EQ(plan.members(Axis::dp_cp, rank), alike(brute.dense, rank, {"dp", "cp"}));
  EXPECT_EQ(plan.members(Axis::pp, rank), alike(brute.dense, rank, {"pp"}));
  EXPECT_EQ(plan.members(Axis::pp, rank), alike(brute.expert, rank, {"pp"}));
  EXPECT_EQ(plan.members(Axis::etp, rank), alike(brute.expert, rank, {"tp"}));
  EXPECT_EQ(plan.members(Axis::ep, rank), alike(brute.expert, rank, {"ep"}));
  EXPECT_EQ(plan.members(Axis::etp_ep, rank), alike(brute.expert, rank, {"tp", "ep"}));
  EXPECT_EQ(plan.members(Axis::edp, rank), alike(brute.expert, rank, {"dp"}));
  EXPECT_EQ(plan.members(Axis::world, rank).size(), brute.dense.size());
  const Ranks stages = plan.members(Axis::pp, rank);
  const bool at_an_end = rank == stages.front() || rank == stages.back();
  EXPECT_EQ(plan.members(Axis::embed, rank),
            stages.size() == 1 || !at_an_end ? Ranks{rank} : (Ranks{stages.front(), stages.back()}));
}

// A layout that keeps the rules, with at most `max_world` ranks.
MeshSizes random_sizes(std::mt19937& random, int max_world) {
  const auto pick = [&](std::initializer_list<int> from) { return *(from.begin() + random() % from.size()); };
  while (true) {
    MeshSizes s;
    s.tp = pick({1, 1, 2, 3, 4, 5, 8});
    s.cp = pick({1, 1, 2, 3, 4});
    s.pp = pick({1, 2, 3, 4, 8, 16});
    s.order = pick({0, 1}) == 0 ? MeshOrder::tp_cp_ep_dp_pp : MeshOrder::tp_cp_ep_pp_dp;
    const int dp = 1 + static_cast<int>(random() % 40);
    s.world = s.tp * s.cp * s.pp * dp;
    s.etp = pick({0, 1, 2, 3, 4});
    const int etp = s.etp == 0 ? s.tp : s.etp;
    s.ep = s.order == MeshOrder::tp_cp_ep_pp_dp && s.pp > 1 ? s.tp * s.cp / etp : pick({1, 2, 3, 4, 6, 8, 16, 64});
    const bool fits = s.ep >= 1 && s.world % (etp * s.ep * s.pp) == 0;
    const bool same_pipelines = s.order == MeshOrder::tp_cp_ep_dp_pp || s.pp == 1 || etp * s.ep == s.tp * s.cp;
    if (s.world <= max_world && fits && same_pipelines) return s;
  }
}

TEST(MeshPlan, AgreesWithPlainLoops) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 300; ++trial) {
    const MeshSizes s = random_sizes(random, trial % 30 == 0 ? 4096 : 200);
    SCOPED_TRACE(testing::Message() << "world " << s.world << " tp " << s.tp << " cp " << s.cp << " pp " << s.pp
                                    << " ep " << s.ep << " etp " << s.etp << " " << name_of(s.order));
    ASSERT_TRUE(mesh_problems(s).empty());
    const MeshPlan plan(s);
    const Brute brute = brute_force(s);
    ASSERT_EQ(brute.dense.size(), static_cast<std::size_t>(s.world));
    ASSERT_EQ(brute.expert.size(), static_cast<std::size_t>(s.world));
    for (int i = 0; i < 6; ++i) compare_rank(plan, brute, static_cast<int>(random() % static_cast<unsigned>(s.world)));
    compare_rank(plan, brute, 0);
    compare_rank(plan, brute, s.world - 1);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(MeshPlan, EveryRankOf4096) {
  const MeshPlan plan({.world = 4096, .tp = 8, .cp = 2, .pp = 16, .ep = 32, .etp = 2});
  EXPECT_EQ(plan.dp(), 16);
  EXPECT_EQ(plan.edp(), 4);
  for (Axis axis : {Axis::tp, Axis::cp, Axis::dp, Axis::dp_cp, Axis::pp, Axis::ep, Axis::etp, Axis::etp_ep, Axis::edp,
                    Axis::embed}) {
    std::map<int, Ranks> groups;
    for (int rank = 0; rank < 4096; ++rank) groups[plan.color(axis, rank)].push_back(rank);
    for (const auto& [color, ranks] : groups)  // who has a color, and nobody else, is a member
      for (int rank : ranks) ASSERT_EQ(plan.members(axis, rank), ranks) << name_of(axis) << " of rank " << rank;
  }
  for (int rank = 0; rank < 4096; ++rank) {
    ASSERT_EQ(plan.rank(plan.coord(rank)), rank);
    ASSERT_EQ(plan.expert_rank(plan.coord(rank)), rank);
  }
}

// The example in Megatron-LM's description of its groups: 16 GPUs, tensor 2, pipeline 4.
TEST(MeshPlan, SixteenRanksAsMegatronDescribes) {
  const MeshPlan plan({.world = 16, .tp = 2, .pp = 4});
  EXPECT_EQ(plan.members(Axis::tp, 1), (Ranks{0, 1}));
  EXPECT_EQ(plan.members(Axis::tp, 14), (Ranks{14, 15}));
  EXPECT_EQ(plan.members(Axis::pp, 0), (Ranks{0, 4, 8, 12}));
  EXPECT_EQ(plan.members(Axis::pp, 7), (Ranks{3, 7, 11, 15}));
  EXPECT_EQ(plan.members(Axis::dp, 0), (Ranks{0, 2}));
  EXPECT_EQ(plan.members(Axis::dp, 5), (Ranks{5, 7}));
  EXPECT_EQ(plan.members(Axis::embed, 12), (Ranks{0, 12}));
  EXPECT_EQ(plan.members(Axis::embed, 8), (Ranks{8}));
  const MeshPlan inner({.world = 16, .tp = 2, .pp = 4, .order = MeshOrder::tp_cp_ep_pp_dp});
  EXPECT_EQ(inner.members(Axis::pp, 0), (Ranks{0, 2, 4, 6}));
  EXPECT_EQ(inner.members(Axis::dp, 0), (Ranks{0, 8}));
}

// Experts folded over tensor, context and data parallel ranks.
TEST(MeshPlan, ExpertsOverAllOfAStage) {
  const MeshPlan plan({.world = 16, .tp = 2, .cp = 2, .pp = 2, .ep = 4, .etp = 1});
  EXPECT_EQ(plan.dp(), 2);
  EXPECT_EQ(plan.edp(), 2);
  EXPECT_EQ(plan.members(Axis::ep, 5), (Ranks{4, 5, 6, 7}));
  EXPECT_EQ(plan.members(Axis::edp, 5), (Ranks{1, 5}));
  EXPECT_EQ(plan.members(Axis::etp, 5), (Ranks{5}));
  EXPECT_EQ(plan.members(Axis::dp_cp, 5), (Ranks{1, 3, 5, 7}));
  EXPECT_EQ(plan.members(Axis::pp, 5), (Ranks{5, 13}));
  const MeshPlan all({.world = 16, .tp = 2, .cp = 2, .pp = 2, .ep = 8, .etp = 1});
  EXPECT_EQ(all.members(Axis::ep, 9), (Ranks{8, 9, 10, 11, 12, 13, 14, 15}));
  EXPECT_EQ(MeshPlan({.world = 8, .tp = 2, .ep = 2}).sizes().etp, 2);
}

TEST(MeshProblems, AreReportedTogetherWithTheNearestValues) {
  EXPECT_TRUE(mesh_problems({.world = 8, .tp = 2, .pp = 2, .ep = 2}).empty());
  const auto dense = mesh_problems({.world = 12, .tp = 8, .cp = 1, .pp = 1});
  ASSERT_EQ(dense.size(), 1u);
  EXPECT_EQ(dense[0].text(),
            "dist.tensor_model_parallel_size=8: must divide the number of ranks, which is 12; nearest: "
            "tensor_model_parallel_size 6 or 12, or 8 or 16 ranks");
  const auto product = mesh_problems({.world = 12, .tp = 4, .pp = 6});
  ASSERT_EQ(product.size(), 1u);
  EXPECT_EQ(product[0].text(),
            "dist.tensor_model_parallel_size=4: times pipeline_model_parallel_size=6 is 24, which must divide the "
            "number of ranks, which is 12; nearest: tensor_model_parallel_size 2, pipeline_model_parallel_size 3, or "
            "24 ranks");
  const auto pipeline = mesh_problems({.world = 8, .pp = 5});
  ASSERT_EQ(pipeline.size(), 1u);
  EXPECT_EQ(pipeline[0].text(),
            "dist.pipeline_model_parallel_size=5: must divide the number of ranks, which is 8; nearest: "
            "pipeline_model_parallel_size 4 or 8, or 5 or 10 ranks");
  const auto both = mesh_problems({.world = 8, .tp = 3, .ep = 3, .etp = 2});
  ASSERT_EQ(both.size(), 2u);
  EXPECT_EQ(both[0].key, "dist.tensor_model_parallel_size");
  EXPECT_EQ(both[0].value, 3);
  EXPECT_TRUE(contains(both[0].rule, "nearest: tensor_model_parallel_size 2 or 4")) << both[0].rule;
  EXPECT_EQ(both[1].key, "dist.expert_model_parallel_size");
  EXPECT_TRUE(contains(both[1].rule, "nearest: expert_model_parallel_size 2 or 4, or 6 or 12 ranks")) << both[1].rule;
  const auto experts = mesh_problems({.world = 24, .tp = 2, .pp = 3, .ep = 8, .etp = 1}, 8);
  EXPECT_TRUE(experts.empty());
  const auto shared = mesh_problems({.world = 12, .tp = 2, .pp = 2, .ep = 4, .etp = 1}, 8);
  ASSERT_EQ(shared.size(), 1u);
  EXPECT_TRUE(contains(shared[0].rule,
                       "nearest: expert_model_parallel_size 2, pipeline_model_parallel_size 1 or 3, or 8 or 16 ranks"))
      << shared[0].rule << "; 3 and 6 do not divide 8 experts";
  const auto order = mesh_problems({.world = 16, .tp = 2, .cp = 2, .pp = 2, .order = MeshOrder::tp_cp_ep_pp_dp});
  ASSERT_EQ(order.size(), 1u);
  EXPECT_TRUE(contains(order[0].rule, "must be tensor_model_parallel_size times context_parallel_size, which is 4"));
  EXPECT_TRUE(contains(order[0].rule, "nearest: expert_model_parallel_size=2, or the order tp-cp-ep-dp-pp"))
      << order[0].rule;
  const auto limits = mesh_problems({.world = 0, .tp = 0, .cp = -1, .pp = 1 << 30, .ep = 0, .etp = -2});
  ASSERT_EQ(limits.size(), 6u);
  EXPECT_EQ(limits[0].text(), "world=0: must be in 1..1048576");
  const std::string thrown = message_of<UserError>([] { MeshPlan({.world = 8, .tp = 3, .ep = 3, .etp = 2}); });
  EXPECT_EQ(thrown, both[0].text() + "\n" + both[1].text());
}

// A layout has problems exactly when the definition breaks; and what is proposed has none.
TEST(MeshProblems, ExactlyWhereTheRulesBreak) {
  int broken = 0;
  for (int world : {1, 6, 8, 24})
    for (int tp : {1, 2, 3, 4})
      for (int cp : {1, 2})
        for (int pp : {1, 2, 4})
          for (int ep : {1, 2, 3, 8})
            for (int etp : {0, 1, 2})
              for (MeshOrder order : {MeshOrder::tp_cp_ep_dp_pp, MeshOrder::tp_cp_ep_pp_dp}) {
                const MeshSizes s{.world = world, .tp = tp, .cp = cp, .pp = pp, .ep = ep, .etp = etp, .order = order};
                const int inner = etp == 0 ? tp : etp;
                const bool sound = world % (tp * cp * pp) == 0 && world % (inner * ep * pp) == 0 &&
                                   (pp == 1 || order == MeshOrder::tp_cp_ep_dp_pp || tp * cp == inner * ep);
                ASSERT_EQ(mesh_problems(s).empty(), sound) << world << " " << tp << cp << pp << ep << etp;
                broken += sound ? 0 : 1;
              }
  EXPECT_GT(broken, 100);
}

TEST(MeshPlan, RefusesRanksOutsideTheWorld) {
  const MeshPlan plan({.world = 4, .tp = 2});
  EXPECT_THROW(plan.coord(4), Error);
  EXPECT_THROW(plan.coord(-1), Error);
}

}  // namespace
}  // namespace tera::test
