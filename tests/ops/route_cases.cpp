// Routing (top-k choice of experts) against sorting in fp64, gradients against finite differences of the weights and
// losses.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/support/op_test.h"

#include "tera/ops/route.h"

namespace tera::test {
namespace {

constexpr auto sigmoid = ScoreFunction::sigmoid;

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

// Indices of values from the best down. margin becomes the smallest distance, relative to the values' sizes, between
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
  if (bias.empty() && rule.groups == 1) choice.margin = 1;  // logits decide, and they are exact
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
  double spread = 2, mean = 0;  // distribution of the logits
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

// Rows whose choice depends on the last bits of fp32 are drawn again.
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

void run_forward(const Case& c) {
  OpCase op(c.name());
  const Handles h = add_tensors(op, c);
  op.call([=](Ops& ops, const Bound& at) {
    ops(RouteArgs{.logits = at[h.logits],
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
  op.run();
}

constexpr float z_coefficient = 0.75f;

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
  double maximum = 0;
  for (double x : values) maximum = std::max(maximum, std::abs(x));
  return maximum;
}

void expect_back(Reference& r, const Case& c, const BackHandles& h) {
  for (std::size_t row = 0; row < static_cast<std::size_t>(c.rows); ++row) {
    const Values logits = row_of(r[h.logits], row, c.width()), dweights = row_of(r[h.dweights], row, c.topk());
    std::vector<std::size_t> experts;
    for (double e : row_of(r[h.experts], row, c.topk())) experts.push_back(static_cast<std::size_t>(e));
    const Values loads = c.sums ? row_of(r[h.loads], c.part_of(row), c.width()) : Values{};
    const double z_scale = c.sums ? r[h.z_scale][0] * z_coefficient : 0;
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

void run_backward(const Case& c) {
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
    ops(RouteBackArgs{.logits = at[h.logits],
                      .experts = at[h.experts],
                      .dweights = at[h.dweights],
                      .loads = c.sums ? at[h.loads] : Tensor{},
                      .z_scale = c.sums ? at[h.z_scale] : Tensor{},
                      .z_coefficient = z_coefficient,
                      .dlogits = at[h.dlogits],
                      .part_rows = c.part_rows,
                      .first_row = c.first_row,
                      .rule = c.rule});
  });
  op.reference([&](Reference& r) { expect_back(r, c, h); });
  op.run();
}

// Forward and backward; the latter of few rows, since differences of every logit take time.
void run_both(Case c) {
  run_forward(c);
  if (c.part_rows == 0) c.rows = std::min<std::int64_t>(c.rows, c.experts > 100 ? 2 : 7);
  run_backward(c);
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
      run_both({.rows = 5, .experts = 8, .rule = rule(2)});
      run_both({.rows = 5, .experts = 8, .rule = rule(1)});
      run_both({.rows = 3, .experts = 1, .rule = rule(1)});
      run_both({.rows = 9, .experts = 7, .rule = rule(7)});    // all of them
      run_both({.rows = 4, .experts = 32, .rule = rule(32)});  // as many as there may be
      run_both({.rows = 4, .experts = 33, .rule = rule(3)});
      run_both({.rows = 3, .experts = 65, .rule = rule(4)});
      run_both({.rows = 3, .experts = 200, .rule = rule(10)});
      run_both({.rows = 3, .experts = 512, .rule = rule(32)});
      run_both({.rows = 6, .experts = 16, .rule = rule(4), .sums = false});
      run_both({.rows = 6, .experts = 16, .rule = rule(4), .bias = true});
      run_forward({.rows = 0, .experts = 8, .rule = rule(2)});
      run_backward({.rows = 0, .experts = 8, .rule = rule(2)});
      run_forward({.rows = 1500, .experts = 60, .rule = rule(4), .bias = true});  // many blocks of rows
    }
}

TEST(RouteOp, ScaleAndSpread) {
  run_both({.rows = 5, .experts = 24, .rule = {.topk = 4, .scale = 2.5f}, .spread = 8});
  run_both({.rows = 5, .experts = 24, .rule = {.score = sigmoid, .topk = 4, .scale = 2.5f}, .spread = 8});
  run_both({.rows = 5, .experts = 24, .rule = {.score = sigmoid, .topk = 4, .renormalize = false, .scale = 0.5f}});
}

TEST(RouteOp, SumsOfTinySigmoidsAreNotZero) {
  for (const bool renormalize : {true, false}) {
    const RouterRule rule{.score = sigmoid, .topk = 3, .renormalize = renormalize};
    run_both({.rows = 5, .experts = 10, .rule = rule, .spread = 1, .mean = -46});  // around 1e-20
    run_both({.rows = 5, .experts = 10, .rule = rule, .spread = 1, .mean = -60});
  }
}

TEST(RouteOp, Groups) {
  run_both({.rows = 40, .experts = 256, .rule = deepseek_v3, .bias = true});
  run_both({.rows = 40, .experts = 160, .rule = deepseek_v2});
  for (const bool bias : {false, true})
    for (const std::int64_t best : {1, 2, 3}) {
      run_forward({.rows = 40,
                   .experts = 24,
                   .rule = {.topk = 5, .groups = 4, .group_topk = 2, .group_best = best},
                   .bias = bias});
      run_forward({.rows = 40,
                   .experts = 35,
                   .rule = {.score = sigmoid, .topk = 5, .groups = 7, .group_topk = 1, .group_best = best},
                   .bias = bias});
    }
  run_forward({.rows = 20, .experts = 12, .rule = {.topk = 3, .groups = 12, .group_topk = 4, .group_best = 1}});
  run_forward(
      {.rows = 20, .experts = 12, .rule = {.topk = 3, .groups = 4, .group_topk = 4, .group_best = 9}});  // all groups
  run_forward({.rows = 9, .experts = 128, .rule = {.topk = 3, .groups = 64, .group_topk = 5}});
}

TEST(RouteOp, Parts) {
  for (const ScoreFunction score : {ScoreFunction::softmax, sigmoid}) {
    const RouterRule rule{.score = score, .topk = 2};
    run_both({.rows = 12, .experts = 6, .rule = rule, .parts = 3, .part_rows = 4});
    run_both({.rows = 11, .experts = 6, .rule = rule, .parts = 5, .part_rows = 4, .first_row = 6});
    run_both({.rows = 2, .experts = 6, .rule = rule, .parts = 3, .part_rows = 1000, .first_row = 1999});
    run_both({.rows = 5, .experts = 6, .rule = rule, .parts = 7, .part_rows = 1, .first_row = 1});
    run_forward({.rows = 0, .experts = 6, .rule = rule, .parts = 2, .part_rows = 4, .first_row = 4});
    run_forward({.rows = 700, .experts = 6, .rule = rule, .parts = 4, .part_rows = 257, .first_row = 130});
  }
}

TEST(RouteOp, ForcedBalance) {
  run_both({.rows = 16, .experts = 12, .rule = {.topk = 4, .force_balance = true}, .bias = true});
  run_both({.rows = 9, .experts = 5, .rule = {.score = sigmoid, .topk = 5, .force_balance = true}});
  run_forward({.rows = 9, .experts = 7, .rule = {.topk = 3, .renormalize = false, .force_balance = true}});
}

}  // namespace
}  // namespace tera::test
