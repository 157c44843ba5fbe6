// The choice of experts against sorting in fp64, gradients against finite differences of the weights and losses.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "tera/base/error.h"
#include "tests/support/gpu.h"
#include "tests/support/op_test.h"

namespace tera::test {
namespace {

constexpr auto sigmoid = ScoreFunction::sigmoid;
constexpr float infinity = std::numeric_limits<float>::infinity();

// Everything about one row, in fp64 and by the definitions.
Values scores_of(ScoreFunction score, const Values& logits) {
  Values out;
  for (double x : logits) out.push_back(score == sigmoid ? 1 / (1 + std::exp(-x)) : std::exp(x));
  const double sum = std::accumulate(out.begin(), out.end(), 0.0);
  if (score != sigmoid)
    for (double& x : out) x /= sum;
  return out;
}

Values normalised(ScoreFunction score, Values scores) {
  const double sum = std::accumulate(scores.begin(), scores.end(), 0.0);
  if (score == sigmoid)
    for (double& x : scores) x /= sum + 1e-20;
  return scores;
}

double log_sum(const Values& logits) {
  double sum = 0;
  for (double x : logits) sum += std::exp(x);
  return std::log(sum);
}

// Places of values from the best down. margin becomes the smallest distance, relative to the values' sizes, between
// the first `wanted` and what follows each of them, where that is less.
std::vector<std::size_t> best_of(const Values& values, std::int64_t wanted, double& margin) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return values[a] > values[b]; });
  for (std::size_t i = 0; i + 1 < order.size() && i < static_cast<std::size_t>(wanted); ++i) {
    const double here = values[order[i]], next = values[order[i + 1]];
    margin = std::min(margin, (here - next) / (std::abs(here) + std::abs(next)));
  }
  order.resize(static_cast<std::size_t>(wanted));
  return order;
}

struct Choice {
  std::vector<std::size_t> experts;
  double margin = 1;  // how clear it was; less than 1 matters only where scores were rounded
};
Choice choose(const RouterRule& rule, const Values& logits, const Values& bias, std::int64_t row) {
  Choice choice;
  if (rule.force_balance) {
    for (std::int64_t k = 0; k < rule.topk; ++k)
      choice.experts.push_back(static_cast<std::size_t>(row * rule.topk + k) % logits.size());
    return choice;
  }
  Values biased = scores_of(rule.score, logits);
  for (std::size_t e = 0; e < bias.size(); ++e) biased[e] += bias[e];
  if (rule.group_topk < rule.groups) {
    const std::size_t size = biased.size() / static_cast<std::size_t>(rule.groups);
    Values group_scores;
    for (std::size_t g = 0; g < static_cast<std::size_t>(rule.groups); ++g) {
      Values members(biased.begin() + static_cast<std::ptrdiff_t>(g * size),
                     biased.begin() + static_cast<std::ptrdiff_t>((g + 1) * size));
      std::sort(members.rbegin(), members.rend());
      group_scores.push_back(std::accumulate(members.begin(), members.begin() + rule.group_best, 0.0));
    }
    const auto groups = best_of(group_scores, rule.group_topk, choice.margin);
    for (std::size_t e = 0; e < biased.size(); ++e)
      if (std::find(groups.begin(), groups.end(), e / size) == groups.end()) biased[e] = -1e9;
  }
  choice.experts = best_of(biased, rule.topk, choice.margin);
  if (bias.empty() && rule.groups == 1) choice.margin = 1;  // logits tell, and they are exact
  return choice;
}

Values weights_of(const RouterRule& rule, const Values& logits, const std::vector<std::size_t>& experts) {
  const Values scores = scores_of(rule.score, logits);
  Values weights;
  for (std::size_t e : experts) weights.push_back(scores[e]);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  const double divisor = !rule.renormalize ? 1 : rule.score == sigmoid ? sum + 1e-20 : sum;
  for (double& weight : weights) weight *= static_cast<double>(rule.scale) / divisor;
  return weights;
}

struct Case {
  std::int64_t rows, experts;
  RouterRule rule;
  double spread = 2, mean = 0;  // of logits
  bool bias = false, sums = true;
  std::int64_t parts = 1, part_rows = 0, first_row = 0;

  std::string name() const {
    return fmt::format(
        "{} rows of {} experts, {} top {} renormalize {} scale {} groups {}/{} best {} forced {}, logits "
        "{}+-{}, bias {}, sums {}, parts {} of {} from {}",
        rows, experts, name_of(rule.score), rule.topk, rule.renormalize, rule.scale, rule.group_topk, rule.groups,
        rule.group_best, rule.force_balance, mean, spread, bias, sums, parts, part_rows, first_row);
  }
  std::size_t width() const { return static_cast<std::size_t>(experts); }
  std::size_t topk() const { return static_cast<std::size_t>(rule.topk); }
  std::size_t part_of(std::size_t row) const {
    return part_rows == 0 ? 0 : static_cast<std::size_t>((first_row + static_cast<std::int64_t>(row)) / part_rows);
  }
  Values bias_values() const {
    Values values = bias ? normal_values(shape(experts), 3, rule.score == sigmoid ? 0.2 : 0.02) : Values{};
    for (double& value : values) value = OpCase::stored(DType::f32, value);
    return values;
  }
  static std::int64_t row_id(std::size_t row) { return 5 + 3 * static_cast<std::int64_t>(row); }
};

Values row_of(const Values& values, std::size_t row, std::size_t width) {
  const auto begin = values.begin() + static_cast<std::ptrdiff_t>(row * width);
  return {begin, begin + static_cast<std::ptrdiff_t>(width)};
}

// Rows whose choice hangs on the last bits of fp32 are drawn again.
Values clear_logits(const Case& c) {
  Values all;
  const Values bias = c.bias_values();
  for (std::size_t row = 0, seed = 100; row < static_cast<std::size_t>(c.rows); ++seed) {
    Values logits = normal_values(shape(c.experts), seed, c.spread, c.mean);
    for (double& x : logits) x = OpCase::stored(DType::f32, x);
    if (choose(c.rule, logits, bias, Case::row_id(row)).margin < 2e-5) continue;
    all.insert(all.end(), logits.begin(), logits.end());
    ++row;
  }
  return all;
}

Values row_ids(const Case& c) {
  Values ids;
  for (std::size_t row = 0; row < static_cast<std::size_t>(c.rows); ++row)
    ids.push_back(static_cast<double>(Case::row_id(row)));
  return ids;
}

struct Handles {
  Handle logits, bias, rows, experts, weights, counts, score_sums, z_sum;
};

Handles add_tensors(OpCase& op, const Case& c) {
  const Shape choices = shape(c.rows, c.rule.topk), sums = shape(c.parts, c.experts);
  Handles h;
  h.logits = op.input("logits", shape(c.rows, c.experts), DType::f32, clear_logits(c));
  if (c.bias) h.bias = op.input("bias", shape(c.experts), DType::f32, c.bias_values());
  if (c.rule.force_balance) h.rows = op.input("rows", shape(c.rows), DType::i64, row_ids(c));
  h.experts = op.output("experts", choices, DType::i32, {.terms = 0});
  h.weights = op.output("weights", choices, DType::f32, {.terms = c.experts});
  if (!c.sums) return h;
  h.counts = op.output("counts", sums, DType::i32, {.terms = 0});
  h.score_sums = op.output("score_sums", sums, DType::f32, {.terms = c.rows + c.experts});
  h.z_sum = op.output("z_sum", shape(1), DType::f32, {.terms = c.rows + c.experts});
  return h;
}

void expect_route(Reference& r, const Case& c, const Handles& h) {
  Values counts(static_cast<std::size_t>(c.parts * c.experts)), score_sums(counts.size());
  double z = 0, z_magnitude = 0;
  for (std::size_t row = 0; row < static_cast<std::size_t>(c.rows); ++row) {
    const Values logits = row_of(r[h.logits], row, c.width());
    const Choice choice = choose(c.rule, logits, c.bias_values(), Case::row_id(row));
    const Values weights = weights_of(c.rule, logits, choice.experts);
    for (std::size_t k = 0; k < c.topk(); ++k) {
      r.expect(h.experts, row * c.topk() + k, static_cast<double>(choice.experts[k]), 0);
      r.expect(h.weights, row * c.topk() + k, weights[k], weights[k] * (1 + 0.5 * c.spread));
      counts[c.part_of(row) * c.width() + choice.experts[k]] += 1;
    }
    const Values scores = normalised(c.rule.score, scores_of(c.rule.score, logits));
    for (std::size_t e = 0; e < c.width(); ++e) score_sums[c.part_of(row) * c.width() + e] += scores[e];
    const double lse = log_sum(logits);
    z += lse * lse;
    z_magnitude += std::abs(lse) * (std::abs(lse) + std::abs(c.mean) + 2 * c.spread + 1);
  }
  if (!c.sums) return;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    r.expect(h.counts, i, counts[i], 0);
    r.expect(h.score_sums, i, score_sums[i], score_sums[i] * (1 + 0.5 * c.spread));
  }
  r.expect(h.z_sum, 0, z, z_magnitude);
}

void play(const Case& c) {
  OpCase op(c.name());
  const Handles h = add_tensors(op, c);
  op.call([=](Ops& ops, const Bound& at) {
    ops.route({.logits = at[h.logits],
               .bias = c.bias ? at[h.bias] : Tensor{},
               .rows = c.rule.force_balance ? at[h.rows] : Tensor{},
               .experts = at[h.experts],
               .weights = at[h.weights],
               .counts = c.sums ? at[h.counts] : Tensor{},
               .score_sums = c.sums ? at[h.score_sums] : Tensor{},
               .z_sum = c.sums ? at[h.z_sum] : Tensor{},
               .part_rows = c.part_rows,
               .first_row = c.first_row,
               .rule = c.rule});
  });
  op.reference([&](Reference& r) { expect_route(r, c, h); });
  op.play();
}

struct BackHandles {
  Handle logits, experts, dweights, loads, z_scale, dlogits;
};

// The loss of one row whose gradient route_back gives.
double row_loss(const Case& c, const Values& logits, const std::vector<std::size_t>& experts, const Values& dweights,
                const Values& loads, double z_scale) {
  const Values weights = weights_of(c.rule, logits, experts);
  const Values scores = normalised(c.rule.score, scores_of(c.rule.score, logits));
  double loss = z_scale * log_sum(logits) * log_sum(logits);
  for (std::size_t k = 0; k < weights.size(); ++k) loss += weights[k] * dweights[k];
  for (std::size_t e = 0; e < loads.size(); ++e) loss += scores[e] * loads[e];
  return loss;
}

double largest(const Values& values) {
  double most = 0;
  for (double x : values) most = std::max(most, std::abs(x));
  return most;
}

void expect_back(Reference& r, const Case& c, const BackHandles& h) {
  for (std::size_t row = 0; row < static_cast<std::size_t>(c.rows); ++row) {
    const Values logits = row_of(r[h.logits], row, c.width()), dweights = row_of(r[h.dweights], row, c.topk());
    std::vector<std::size_t> experts;
    for (double e : row_of(r[h.experts], row, c.topk())) experts.push_back(static_cast<std::size_t>(e));
    const Values loads = c.sums ? row_of(r[h.loads], c.part_of(row), c.width()) : Values{};
    const double z_scale = c.sums ? r[h.z_scale][0] : 0;
    const auto loss = [&](const Values& x) { return row_loss(c, x, experts, dweights, loads, z_scale); };
    const Values gradient = finite_differences(loss, logits);
    const Values scores = scores_of(c.rule.score, logits), even = normalised(c.rule.score, scores);
    const Values p = scores_of(ScoreFunction::softmax, logits), weights = weights_of(c.rule, logits, experts);
    const double noise = 2e-6 * (1 + std::abs(loss(logits)));  // differences of fp64 values have some
    const double lse = std::abs(log_sum(logits)) + std::abs(c.mean) + 1, step = static_cast<double>(c.rule.scale);
    for (std::size_t e = 0; e < c.width(); ++e) {
      double magnitude = even[e] * 2 * (largest(loads) + (c.rule.renormalize ? 0 : step * largest(dweights)));
      magnitude += 2 * z_scale * lse * p[e] + noise;
      const auto chosen = std::find(experts.begin(), experts.end(), e);
      if (chosen != experts.end())
        magnitude += 2 * largest(dweights) * weights[static_cast<std::size_t>(chosen - experts.begin())];
      r.expect(h.dlogits, row * c.width() + e, gradient[e], magnitude * (1 + 0.5 * c.spread));
    }
  }
}

void play_back(const Case& c) {
  OpCase op("back: " + c.name());
  const Shape choices = shape(c.rows, c.rule.topk);
  const Values logits = clear_logits(c);
  Values experts;
  for (std::size_t row = 0; row < static_cast<std::size_t>(c.rows); ++row)
    for (std::size_t e : choose(c.rule, row_of(logits, row, c.width()), c.bias_values(), Case::row_id(row)).experts)
      experts.push_back(static_cast<double>(e));
  BackHandles h;
  h.logits = op.input("logits", shape(c.rows, c.experts), DType::f32, logits);
  h.experts = op.input("experts", choices, DType::i32, experts);
  h.dweights = op.input("dweights", choices, DType::f32, normal_values(choices, 7));
  if (c.sums) {
    const Shape sums = shape(c.parts, c.experts);
    h.loads = op.input("loads", sums, DType::f32, normal_values(sums, 8));
    h.z_scale = op.input("z_scale", shape(1), DType::f32, {0.3});
  }
  h.dlogits = op.output("dlogits", shape(c.rows, c.experts), DType::f32, {.terms = c.experts});
  op.call([=](Ops& ops, const Bound& at) {
    ops.route_back({.logits = at[h.logits],
                    .experts = at[h.experts],
                    .dweights = at[h.dweights],
                    .loads = c.sums ? at[h.loads] : Tensor{},
                    .z_scale = c.sums ? at[h.z_scale] : Tensor{},
                    .dlogits = at[h.dlogits],
                    .part_rows = c.part_rows,
                    .first_row = c.first_row,
                    .rule = c.rule});
  });
  op.reference([&](Reference& r) { expect_back(r, c, h); });
  op.play();
}

// Forward and backward; the latter of few rows, since differences of every logit take time.
void play_both(Case c) {
  play(c);
  if (c.part_rows == 0) c.rows = std::min<std::int64_t>(c.rows, c.experts > 100 ? 2 : 7);
  play_back(c);
}

constexpr RouterRule deepseek_v3{.score = sigmoid, .topk = 8, .scale = 2.5f, .groups = 8, .group_topk = 4};
constexpr RouterRule deepseek_v2{
    .topk = 6, .renormalize = false, .scale = 16, .groups = 8, .group_topk = 3, .group_best = 1};

TEST(RouteOp, ScoresAndSizes) {
  for (const ScoreFunction score : {ScoreFunction::softmax, sigmoid})
    for (const bool renormalize : {true, false}) {
      const auto rule = [&](std::int64_t topk) {
        return RouterRule{.score = score, .topk = topk, .renormalize = renormalize};
      };
      play_both({.rows = 5, .experts = 8, .rule = rule(2)});
      play_both({.rows = 5, .experts = 8, .rule = rule(1)});
      play_both({.rows = 3, .experts = 1, .rule = rule(1)});
      play_both({.rows = 9, .experts = 7, .rule = rule(7)});    // all of them
      play_both({.rows = 4, .experts = 32, .rule = rule(32)});  // as many as there may be
      play_both({.rows = 4, .experts = 33, .rule = rule(3)});
      play_both({.rows = 3, .experts = 65, .rule = rule(4)});
      play_both({.rows = 3, .experts = 200, .rule = rule(10)});
      play_both({.rows = 3, .experts = 512, .rule = rule(32)});
      play_both({.rows = 6, .experts = 16, .rule = rule(4), .sums = false});
      play_both({.rows = 6, .experts = 16, .rule = rule(4), .bias = true});
      play({.rows = 0, .experts = 8, .rule = rule(2)});
      play_back({.rows = 0, .experts = 8, .rule = rule(2)});
      play({.rows = 1500, .experts = 60, .rule = rule(4), .bias = true});  // many blocks of rows
    }
}

TEST(RouteOp, ScaleAndSpread) {
  play_both({.rows = 5, .experts = 24, .rule = {.topk = 4, .scale = 2.5f}, .spread = 8});
  play_both({.rows = 5, .experts = 24, .rule = {.score = sigmoid, .topk = 4, .scale = 2.5f}, .spread = 8});
  play_both({.rows = 5, .experts = 24, .rule = {.score = sigmoid, .topk = 4, .renormalize = false, .scale = 0.5f}});
}

TEST(RouteOp, SumsOfTinySigmoidsAreNotZero) {
  for (const bool renormalize : {true, false}) {
    const RouterRule rule{.score = sigmoid, .topk = 3, .renormalize = renormalize};
    play_both({.rows = 5, .experts = 10, .rule = rule, .spread = 1, .mean = -46});  // around 1e-20
    play_both({.rows = 5, .experts = 10, .rule = rule, .spread = 1, .mean = -60});
  }
}

TEST(RouteOp, Groups) {
  play_both({.rows = 40, .experts = 256, .rule = deepseek_v3, .bias = true});
  play_both({.rows = 40, .experts = 160, .rule = deepseek_v2});
  for (const bool bias : {false, true})
    for (const std::int64_t best : {1, 2, 3}) {
      play({.rows = 40,
            .experts = 24,
            .rule = {.topk = 5, .groups = 4, .group_topk = 2, .group_best = best},
            .bias = bias});
      play({.rows = 40,
            .experts = 35,
            .rule = {.score = sigmoid, .topk = 5, .groups = 7, .group_topk = 1, .group_best = best},
            .bias = bias});
    }
  play({.rows = 20, .experts = 12, .rule = {.topk = 3, .groups = 12, .group_topk = 4, .group_best = 1}});
  play({.rows = 20, .experts = 12, .rule = {.topk = 3, .groups = 4, .group_topk = 4, .group_best = 9}});  // all groups
  play({.rows = 9, .experts = 128, .rule = {.topk = 3, .groups = 64, .group_topk = 5}});
}

TEST(RouteOp, Parts) {
  for (const ScoreFunction score : {ScoreFunction::softmax, sigmoid}) {
    const RouterRule rule{.score = score, .topk = 2};
    play_both({.rows = 12, .experts = 6, .rule = rule, .parts = 3, .part_rows = 4});
    play_both({.rows = 11, .experts = 6, .rule = rule, .parts = 5, .part_rows = 4, .first_row = 6});
    play_both({.rows = 2, .experts = 6, .rule = rule, .parts = 3, .part_rows = 1000, .first_row = 1999});
    play_both({.rows = 5, .experts = 6, .rule = rule, .parts = 7, .part_rows = 1, .first_row = 1});
    play({.rows = 0, .experts = 6, .rule = rule, .parts = 2, .part_rows = 4, .first_row = 4});
    play({.rows = 700, .experts = 6, .rule = rule, .parts = 4, .part_rows = 257, .first_row = 130});
  }
}

TEST(RouteOp, ForcedBalance) {
  play_both({.rows = 16, .experts = 12, .rule = {.topk = 4, .force_balance = true}, .bias = true});
  play_both({.rows = 9, .experts = 5, .rule = {.score = sigmoid, .topk = 5, .force_balance = true}});
  play({.rows = 9, .experts = 7, .rule = {.topk = 3, .renormalize = false, .force_balance = true}});
}

struct Routed {
  std::vector<std::int32_t> experts;
  std::vector<float> weights;
};

// One row, on plain vectors.
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
  call_once(tensors, [&](Ops& ops) { ops.route(args); });
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
  // Those left for a row by a bias share its weight, however unlikely they were.
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

// Whatever the logits: different experts, all of them valid. A row with a NaN, or with an infinity that softmax cannot
// take, must not look sound.
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
              fmt::format("{} of {} bias {} groups {}", name_of(score), fmt::join(logits, ","), biased, group_topk));
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
    const auto call = [&] { call_once(tensors, [&](Ops& ops) { ops.route_back(args); }); };
    if (played_on() == PlayedOn::cpu) {
      EXPECT_THROW(call(), Error);
      continue;
    }
    call();  // a GPU cannot refuse
    for (const float value : dlogits) EXPECT_TRUE(std::isnan(value)) << "a broken row must not look sound";
  }
}

void play_balance(std::int64_t parts, std::int64_t experts, bool accumulate) {
  OpCase op(fmt::format("balance_loss of {} parts, {} experts, accumulate {}", parts, experts, accumulate));
  const Shape s = shape(parts, experts);
  constexpr double coefficient = 0.01;
  constexpr std::int64_t topk = 3, rows = 50;
  const Handle counts = op.input("counts", s, DType::i32, integer_values(s, 1, rows));
  Values sums = normal_values(s, 2);
  for (double& x : sums) x = x * x;
  const Handle score_sums = op.input("score_sums", s, DType::f32, sums);
  const Handle scale = op.input("scale", shape(1), DType::f32, {8});
  const Handle loads = op.output("loads", s, DType::f32, {.terms = 2}, accumulate ? normal_values(s, 4) : Values{});
  const Handle loss = op.output("loss", shape(1), DType::f32, {.terms = 2}, {0.7});
  op.call([=](Ops& ops, const Bound& at) {
    ops.balance_loss({.counts = at[counts],
                      .score_sums = at[score_sums],
                      .scale = at[scale],
                      .loads = at[loads],
                      .loss = at[loss],
                      .coefficient = coefficient,
                      .topk = topk,
                      .rows = rows,
                      .accumulate = accumulate});
  });
  op.reference([=](Reference& r) {
    const auto loss_at = [&](const Values& x) {
      double total = 0;
      for (std::size_t i = 0; i < x.size(); ++i) total += x[i] * r[counts][i];
      return coefficient * static_cast<double>(experts) / (topk * rows * rows) * total / static_cast<double>(parts);
    };
    const double value = loss_at(r[score_sums]);
    r.expect(loss, 0, r[loss][0] + value, 0.7 + value);
    const Values gradient = finite_differences(loss_at, r[score_sums]);
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      const double before = accumulate ? r[loads][i] : 0, load = r[scale][0] * gradient[i];
      r.expect(loads, i, before + load, std::abs(before) + std::abs(load) + 1e-4);
    }
  });
  op.play();
}

TEST(BalanceLossOp, LossAndLoads) {
  for (const bool accumulate : {false, true}) {
    play_balance(1, 1, accumulate);
    play_balance(1, 8, accumulate);
    play_balance(3, 37, accumulate);
    play_balance(5, 512, accumulate);
  }
}

// Evenly used experts with even scores: the smallest value, the coefficient itself.
TEST(BalanceLossOp, OfBalancedExpertsIsTheCoefficient) {
  constexpr std::int64_t experts = 4, topk = 2, rows = 6;
  std::vector<std::int32_t> counts(experts, rows * topk / experts);
  std::vector<float> sums(experts, static_cast<float>(rows) / experts), loads(experts);
  float scale = 1, loss = 0;
  BalanceLossArgs args{.counts = make_tensor(counts.data(), shape(1, experts), DType::i32),
                       .score_sums = make_tensor(sums.data(), shape(1, experts), DType::f32),
                       .scale = make_tensor(&scale, shape(1), DType::f32),
                       .loads = make_tensor(loads.data(), shape(1, experts), DType::f32),
                       .loss = make_tensor(&loss, shape(1), DType::f32),
                       .coefficient = 0.125,
                       .topk = topk,
                       .rows = rows};
  Tensor* const tensors[] = {&args.counts, &args.score_sums, &args.scale, &args.loads, &args.loss};
  call_once(tensors, [&](Ops& ops) { ops.balance_loss(args); });
  EXPECT_EQ(loss, 0.125f);
}

void play_bias(const Values& given) {
  const auto experts = static_cast<std::int64_t>(given.size());
  OpCase op(fmt::format("expert_bias of {} experts", experts));
  const Handle counts = op.input("counts", shape(experts), DType::i32, given);
  const Handle bias =
      op.output("bias", shape(experts), DType::f32, {.terms = 1}, normal_values(shape(experts), 1, 0.1));
  op.call([=](Ops& ops, const Bound& at) { ops.expert_bias({.counts = at[counts], .bias = at[bias], .rate = 0.01f}); });
  op.reference([=](Reference& r) {
    const double mean = std::accumulate(r[counts].begin(), r[counts].end(), 0.0) / static_cast<double>(experts);
    for (std::size_t e = 0; e < r[counts].size(); ++e) {
      const double off = mean - r[counts][e];
      const double step = off > 0 ? 0.01 : off < 0 ? -0.01 : 0;
      r.expect(bias, e, r[bias][e] + step, step == 0 ? 0 : std::abs(r[bias][e]) + 0.01);
    }
  });
  op.play();
}

TEST(ExpertBiasOp, MovesTowardsTheMean) {
  play_bias({5});
  play_bias({3, 3, 3});
  play_bias({1, 2, 3, 0, 4, 2});
  play_bias({2e9, 2e9, 2e9, 2e9 - 1});  // no 32 bits hold the sum, no float the difference
  for (const std::int64_t experts : {31, 100, 512}) play_bias(integer_values(shape(experts), 3, 40));
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
    expect_rejected([&](Ops& ops) { ops.route(args); }, words);
  }
  template <class Change>
  void reject_back(const std::vector<std::string>& words, Change change) {
    RouteBackArgs args = good_back();
    change(args);
    expect_rejected([&](Ops& ops) { ops.route_back(args); }, words);
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

TEST_F(RejectedRoute, WrongBalanceLossOrBias) {
  const auto reject_loss = [&](const std::vector<std::string>& words, const auto& change) {
    BalanceLossArgs args{.counts = integers(shape(2, 8)),
                         .score_sums = floats(shape(2, 8)),
                         .scale = floats(shape(1)),
                         .loads = floats(shape(2, 8)),
                         .loss = floats(shape(1)),
                         .coefficient = 1,
                         .topk = 2,
                         .rows = 4};
    args.check();
    change(args);
    expect_rejected([&](Ops& ops) { ops.balance_loss(args); }, words);
  };
  using A = BalanceLossArgs;
  reject_loss({"balance_loss: counts", "i32"}, [&](A& a) { a.counts = floats(shape(2, 8)); });
  reject_loss({"balance_loss", "a part and an expert"}, [&](A& a) { a.counts = integers(shape(8)); });
  reject_loss({"balance_loss: score_sums is f32[1,8]"}, [&](A& a) { a.score_sums = floats(shape(1, 8)); });
  reject_loss({"balance_loss: scale is f32[2]"}, [&](A& a) { a.scale = floats(shape(2)); });
  reject_loss({"balance_loss: loads is f32[8]"}, [&](A& a) { a.loads = floats(shape(8)); });
  reject_loss({"balance_loss: loss is i32[1]"}, [&](A& a) { a.loss = integers(shape(1)); });
  reject_loss({"balance_loss", "coefficient"}, [&](A& a) { a.coefficient = -1; });
  reject_loss({"balance_loss", "topk and rows"}, [&](A& a) { a.rows = 0; });
  reject_loss({"balance_loss", "topk and rows"}, [&](A& a) { a.topk = 0; });

  const auto reject_bias = [&](const Tensor& counts, const Tensor& bias, float rate, std::vector<std::string> words) {
    expect_rejected([&](Ops& ops) { ops.expert_bias({counts, bias, rate}); }, words);
  };
  reject_bias(floats(shape(8)), floats(shape(8)), 1, {"expert_bias: counts is f32[8]"});
  reject_bias(integers(shape(1, 8)), floats(shape(8)), 1, {"expert_bias", "one dim"});
  reject_bias(integers(shape(8)), floats(shape(7)), 1, {"expert_bias: bias is f32[7]"});
  reject_bias(integers(shape(8)), floats(shape(8)), -1, {"expert_bias", "rate"});
}

}  // namespace
}  // namespace tera::test
