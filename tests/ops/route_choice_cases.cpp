// Single rows of a router, written by hand: equal scores, saturated ones, broken ones; and what route and route_back
// refuse.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "tera/base/error.h"
#include "tera/base/joined.h"
#include "tera/ops/route.h"
#include "tests/support/gpu.h"
#include "tests/support/op_test.h"

namespace tera::test {
namespace {

constexpr auto sigmoid = ScoreFunction::sigmoid;
constexpr float infinity = std::numeric_limits<float>::infinity();

struct Routed {
  std::vector<std::int32_t> experts;
  std::vector<float> weights;
};

// Routes one row on plain vectors.
Routed route_row(std::vector<float> logits, const RouterRule& rule, std::vector<float> bias = {}) {
  const auto topk = static_cast<std::size_t>(rule.topk), width = logits.size();
  Routed out{std::vector<std::int32_t>(topk, -7), std::vector<float>(topk, 77.0f)};
  const Shape choices = shape(1, rule.topk), experts = shape(static_cast<std::int64_t>(width));
  std::int64_t id = 0;
  RouteArgs args{.logits = make_tensor(logits.data(), shape(1, static_cast<std::int64_t>(width)), DType::f32),
                 .rows = make_tensor(&id, shape(1), DType::i64),
                 .experts = make_tensor(out.experts.data(), choices, DType::i32),
                 .weights = make_tensor(out.weights.data(), choices, DType::f32),
                 .rule = rule};
  std::vector<Tensor*> tensors = {&args.logits, &args.rows, &args.experts, &args.weights};
  if (!bias.empty()) {
    args.bias = make_tensor(bias.data(), experts, DType::f32);
    tensors.push_back(&args.bias);
  }
  call_once(tensors, [&](Ops& ops) { ops(args); });
  return out;
}

using Experts = std::vector<std::int32_t>;

TEST(RouteOp, OfEqualScoresTheLowerNumberWins) {
  for (const ScoreFunction score : {ScoreFunction::softmax, sigmoid}) {
    EXPECT_EQ(route_row(std::vector<float>(70, 0.5f), {.score = score, .topk = 4}).experts, (Experts{0, 1, 2, 3}));
    EXPECT_EQ(route_row({1, 3, 2, 3, 2, 1}, {.score = score, .topk = 4}).experts, (Experts{1, 3, 2, 4}));
    EXPECT_EQ(route_row({-0.0f, 0.0f, -0.0f, 0.0f}, {.score = score, .topk = 3}).experts, (Experts{0, 1, 2}));
    EXPECT_EQ(route_row({1, 1, 2, 2}, {.score = score, .topk = 2}, {0, 0, 0, 0}).experts, (Experts{2, 3}));
  }
  // Groups are equal, too: the first ones stay.
  const RouterRule groups{.score = sigmoid, .topk = 3, .groups = 3, .group_topk = 2};
  EXPECT_EQ(route_row({0, 1, 1, 0, 1, 0}, groups).experts, (Experts{1, 2, 0}));
}

TEST(RouteOp, ScoresThatSaturateKeepTheOrderOfLogits) {
  EXPECT_EQ(route_row({40, 41, 42, 43}, {.score = sigmoid, .topk = 2}).experts, (Experts{3, 2}));
  EXPECT_EQ(route_row({-200, -199, 0, -198}, {.topk = 3}).experts, (Experts{2, 3, 1}));
  // The experts that a bias leaves for a row share its weight, however unlikely they were.
  const Routed unlikely = route_row({-200, -200, 0, 0}, {.topk = 2}, {5, 5, 0, 0});
  EXPECT_EQ(unlikely.experts, (Experts{0, 1}));
  EXPECT_EQ(unlikely.weights, (std::vector<float>{0.5f, 0.5f}));
}

TEST(RouteOp, ABiasChangesTheChoiceNotTheWeights) {
  const Routed routed = route_row({0, 0, 0, 0}, {.score = sigmoid, .topk = 2, .renormalize = false}, {0, 0, 0.25f, 1});
  EXPECT_EQ(routed.experts, (Experts{3, 2}));
  EXPECT_EQ(routed.weights, (std::vector<float>{0.5f, 0.5f}));
}

TEST(RouteOp, MinusInfinityIsAnExpertThatIsNotThere) {
  for (const ScoreFunction score : {ScoreFunction::softmax, sigmoid}) {
    const Routed routed = route_row({-infinity, 1, -infinity, -infinity}, {.score = score, .topk = 3});
    EXPECT_EQ(routed.experts, (Experts{1, 0, 2}));
    EXPECT_EQ(routed.weights, (std::vector<float>{1, 0, 0}));
  }
}

// For any logits the chosen experts are different and valid. A row with a NaN, or with an infinity that softmax does
// not allow, must not look sound.
TEST(RouteOp, BrokenLogitsGiveValidExpertsAndNan) {
  const float nan = std::nanf("");
  for (const ScoreFunction score : {ScoreFunction::softmax, sigmoid})
    for (const bool biased : {false, true})
      for (const std::int64_t group_topk : {3, 2})
        for (const std::vector<float>& logits : {std::vector<float>{0, 1, 2, nan, 4, 5},
                                                 {nan, nan, nan, nan, nan, nan},
                                                 {0, infinity, 1, 2, infinity, -1},
                                                 {infinity, nan, -infinity, 0, nan, 3},
                                                 {3, 2, -infinity, 0, -infinity, -nan}}) {
          SCOPED_TRACE(
              fmt::format("{} of {} bias {} groups {}", name_of(score), joined(logits, ","), biased, group_topk));
          const RouterRule rule{.score = score, .topk = 3, .groups = 3, .group_topk = group_topk};
          const Routed routed = route_row(logits, rule, biased ? std::vector<float>(6, 0.5f) : std::vector<float>{});
          EXPECT_EQ(std::set(routed.experts.begin(), routed.experts.end()).size(), 3u);
          for (const std::int32_t expert : routed.experts) EXPECT_TRUE(expert >= 0 && expert < 6) << expert;
          const bool any_nan = std::any_of(logits.begin(), logits.end(), [](float x) { return std::isnan(x); });
          for (const float weight : routed.weights)
            EXPECT_EQ(std::isnan(weight), any_nan || score == ScoreFunction::softmax) << weight;
        }
  EXPECT_EQ(route_row({0, nan, infinity, 3, nan}, {.score = sigmoid, .topk = 4}).experts, (Experts{1, 4, 2, 3}));
}

TEST(RouteOp, BackRefusesExpertsThatAreNotThere) {
  float logits[3] = {0, 1, 2}, dweights[1] = {1}, dlogits[3];
  for (std::int32_t wrong : {-1, 3}) {
    RouteBackArgs args{.logits = make_tensor(logits, shape(1, 3), DType::f32),
                       .experts = make_tensor(&wrong, shape(1, 1), DType::i32),
                       .dweights = make_tensor(dweights, shape(1, 1), DType::f32),
                       .dlogits = make_tensor(dlogits, shape(1, 3), DType::f32)};
    Tensor* const tensors[] = {&args.logits, &args.experts, &args.dweights, &args.dlogits};
    const auto call = [&] { call_once(tensors, [&](Ops& ops) { ops(args); }); };
    if (test_device() == TestDevice::cpu) {
      EXPECT_THROW(call(), Error);
      continue;
    }
    call();  // a GPU cannot refuse
    for (const float value : dlogits) EXPECT_TRUE(std::isnan(value)) << "a broken row must not look sound";
  }
}

TEST(PartBlocks, CoverEveryRowOnceInsideOfParts) {
  for (const std::int64_t rows : {0, 1, 7, 16, 100})
    for (const std::int64_t part_rows : {0, 1, 5, 16, 1000})
      for (const std::int64_t first_row : {0, 3, 16, 999})
        for (const std::int64_t size : {1, 4, 16, 200}) {
          SCOPED_TRACE(fmt::format("{} rows from {}, parts of {}, blocks of {}", rows, first_row, part_rows, size));
          const RowParts parts{rows, part_rows, first_row};
          const PartBlocks blocks{parts, size};
          std::int64_t next = 0;
          for (std::int64_t block = 0; block < blocks.count(); ++block) {
            const std::int64_t part = parts.first() + block / blocks.per_part();
            EXPECT_EQ(blocks.begin(block), next);
            EXPECT_LE(blocks.end(block) - blocks.begin(block), size);
            for (; next < blocks.end(block); ++next) EXPECT_EQ(parts.part_of(next), part);
          }
          EXPECT_EQ(next, rows);
        }
}

class RejectedRoute : public testing::Test {
 protected:
  float memory_[256] = {};
  Tensor floats(const Shape& s) { return make_tensor(memory_, s, DType::f32); }
  Tensor integers(const Shape& s) { return make_tensor(memory_, s, DType::i32); }
  RouteArgs good() {
    return {.logits = floats(shape(4, 8)),
            .experts = integers(shape(4, 2)),
            .weights = floats(shape(4, 2)),
            .rule = {.topk = 2}};
  }
  RouteBackArgs good_back() {
    return {.logits = floats(shape(4, 8)),
            .experts = integers(shape(4, 2)),
            .dweights = floats(shape(4, 2)),
            .dlogits = floats(shape(4, 8)),
            .rule = {.topk = 2}};
  }
  template <class Change>
  void reject(const std::vector<std::string>& words, Change change) {
    RouteArgs args = good();
    change(args);
    expect_rejected([&](Ops& ops) { ops(args); }, words);
  }
  template <class Change>
  void reject_back(const std::vector<std::string>& words, Change change) {
    RouteBackArgs args = good_back();
    change(args);
    expect_rejected([&](Ops& ops) { ops(args); }, words);
  }
};

TEST_F(RejectedRoute, WrongTensors) {
  good().check();
  reject({"route: logits is i32[4,8]", "f32"}, [&](RouteArgs& a) { a.logits = integers(shape(4, 8)); });
  reject({"route", "logits has two dims"}, [&](RouteArgs& a) { a.logits = floats(shape(8)); });
  reject({"route: logits", "dense"}, [&](RouteArgs& a) { a.logits = floats(shape(4, 16)).slice(1, 0, 8); });
  reject({"route: bias is f32[7]", "[8]"}, [&](RouteArgs& a) { a.bias = floats(shape(7)); });
  reject({"route: experts is f32[4,2]", "i32"}, [&](RouteArgs& a) { a.experts = floats(shape(4, 2)); });
  reject({"route: experts is i32[4,3]", "[4,2]"}, [&](RouteArgs& a) { a.experts = integers(shape(4, 3)); });
  reject({"route: weights is f32[4,3]", "[4,2]"}, [&](RouteArgs& a) { a.weights = floats(shape(4, 3)); });
  reject({"route: weights is i32[4,2]", "f32"}, [&](RouteArgs& a) { a.weights = integers(shape(4, 2)); });
  reject({"route: counts is f32[1,8]", "i32"}, [&](RouteArgs& a) { a.counts = floats(shape(1, 8)); });
  reject({"route: counts is i32[1,7]", "[1,8]"}, [&](RouteArgs& a) { a.counts = integers(shape(1, 7)); });
  reject({"route", "two dims"}, [&](RouteArgs& a) { a.counts = integers(shape(8)); });
  reject({"route: score_sums is i32[1,8]", "f32"}, [&](RouteArgs& a) { a.score_sums = integers(shape(1, 8)); });
  reject({"route: score_sums is f32[3,8]", "[2,8]"},
         [&](RouteArgs& a) { a.counts = integers(shape(2, 8)), a.score_sums = floats(shape(3, 8)), a.part_rows = 4; });
  reject({"route: z_sum is f32[2]", "[1]"}, [&](RouteArgs& a) { a.z_sum = floats(shape(2)); });
  reject({"route", "rows"}, [&](RouteArgs& a) { a.rule.force_balance = true; });
  reject({"route: rows is i32[4]", "i64"},
         [&](RouteArgs& a) { a.rule.force_balance = true, a.rows = integers(shape(4)); });
}

TEST_F(RejectedRoute, WrongParts) {
  reject({"route", "one part"}, [&](RouteArgs& a) { a.counts = integers(shape(2, 8)); });
  reject({"route", "part_rows"}, [&](RouteArgs& a) { a.part_rows = -1; });
  reject({"route", "first_row"}, [&](RouteArgs& a) { a.part_rows = 1, a.first_row = -1; });
  reject({"route", "belong to parts"},
         [&](RouteArgs& a) { a.counts = integers(shape(2, 8)), a.part_rows = 2, a.first_row = 1; });
  reject_back({"route_back", "belong to parts"},
              [&](RouteBackArgs& a) { a.loads = floats(shape(2, 8)), a.part_rows = 2, a.first_row = 1; });
}

TEST_F(RejectedRoute, WrongRules) {
  reject({"route", "experts"}, [&](RouteArgs& a) { a.logits = floats(shape(0, 513)); });
  reject({"route", "experts"}, [&](RouteArgs& a) { a.logits = floats(shape(4, 0)); });
  reject({"route", "topk"}, [&](RouteArgs& a) { a.rule.topk = 0; });
  reject({"route", "topk"}, [&](RouteArgs& a) { a.rule.topk = 9; });
  reject({"route", "topk"}, [&](RouteArgs& a) { a.logits = floats(shape(1, 64)), a.rule.topk = 33; });
  reject({"route", "scale"}, [&](RouteArgs& a) { a.rule.scale = 0; });
  reject({"route", "scale"}, [&](RouteArgs& a) { a.rule.scale = infinity; });
  reject({"route", "groups divide"}, [&](RouteArgs& a) { a.rule.groups = 3; });
  reject({"route", "groups divide"}, [&](RouteArgs& a) { a.rule.groups = 0; });
  reject({"route", "group_topk"}, [&](RouteArgs& a) { a.rule.groups = 4, a.rule.group_topk = 5; });
  reject({"route", "group_topk"}, [&](RouteArgs& a) { a.rule.groups = 4, a.rule.group_topk = 0; });
  reject({"route", "have topk experts"}, [&](RouteArgs& a) { a.rule.groups = 8, a.rule.group_topk = 1; });
  reject({"route", "group_best"}, [&](RouteArgs& a) { a.rule.groups = 4, a.rule.group_best = 3; });
  reject({"route", "group_best"}, [&](RouteArgs& a) { a.rule.groups = 4, a.rule.group_best = 0; });
  reject_back({"route_back", "topk"}, [&](RouteBackArgs& a) { a.rule.topk = 0; });
}

TEST_F(RejectedRoute, WrongTensorsOfBackward) {
  good_back().check();
  reject_back({"route_back: logits", "f32"}, [&](RouteBackArgs& a) { a.logits = integers(shape(4, 8)); });
  reject_back({"route_back: experts is i32[4,3]"}, [&](RouteBackArgs& a) { a.experts = integers(shape(4, 3)); });
  reject_back({"route_back: dweights is f32[4,3]"}, [&](RouteBackArgs& a) { a.dweights = floats(shape(4, 3)); });
  reject_back({"route_back: loads is i32[1,8]"}, [&](RouteBackArgs& a) { a.loads = integers(shape(1, 8)); });
  reject_back({"route_back: z_scale is f32[2]"}, [&](RouteBackArgs& a) { a.z_scale = floats(shape(2)); });
  reject_back({"route_back: dlogits is f32[4,7]"}, [&](RouteBackArgs& a) { a.dlogits = floats(shape(4, 7)); });
}

}  // namespace
}  // namespace tera::test
