// Load balancing of experts: the balance loss and the expert bias.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "tests/support/gpu.h"
#include "tests/support/op_test.h"

#include "tera/ops/route.h"

namespace tera::test {
namespace {

void run_balance(std::int64_t parts, std::int64_t experts, bool accumulate) {
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
    ops(BalanceLossArgs{.counts = at[counts],
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
  op.run();
}

void run_shares(std::int64_t experts, bool accumulate) {
  OpCase op(fmt::format("balance_loss of shares, {} experts, accumulate {}", experts, accumulate));
  const Shape s = shape(1, experts);
  constexpr double coefficient = 0.01;
  constexpr std::int64_t rows = 50;
  Values parts = normal_values(s, 1), sums = normal_values(s, 2);
  for (double& x : parts) x = x * x / static_cast<double>(experts);
  for (double& x : sums) x = x * x;
  const Handle shares = op.input("shares", s, DType::f32, parts);
  const Handle score_sums = op.input("score_sums", s, DType::f32, sums);
  const Handle scale = op.input("scale", shape(1), DType::f32, {8});
  const Handle loads = op.output("loads", s, DType::f32, {.terms = 2}, accumulate ? normal_values(s, 4) : Values{});
  const Handle loss = op.output("loss", shape(1), DType::f32, {.terms = 2}, {0.7});
  op.call([=](Ops& ops, const Bound& at) {
    ops(BalanceLossArgs{.shares = at[shares],
                        .score_sums = at[score_sums],
                        .scale = at[scale],
                        .loads = at[loads],
                        .loss = at[loss],
                        .coefficient = coefficient,
                        .topk = 3,
                        .rows = rows,
                        .accumulate = accumulate});
  });
  op.reference([=](Reference& r) {
    double value = 0;
    for (std::size_t e = 0; e < r[shares].size(); ++e) {
      const double load = coefficient * static_cast<double>(experts) / rows * r[shares][e];
      const double before = accumulate ? r[loads][e] : 0;
      value += load * r[score_sums][e];
      r.expect(loads, e, before + r[scale][0] * load, std::abs(before) + r[scale][0] * load + 1e-4);
    }
    r.expect(loss, 0, r[loss][0] + value, 0.7 + value);
  });
  op.run();
}

TEST(BalanceLossOp, OfShares) {
  for (const bool accumulate : {false, true})
    for (const std::int64_t experts : {1, 37, 512}) run_shares(experts, accumulate);
}

TEST(BalanceLossOp, LossAndLoads) {
  for (const bool accumulate : {false, true}) {
    run_balance(1, 1, accumulate);
    run_balance(1, 8, accumulate);
    run_balance(3, 37, accumulate);
    run_balance(5, 512, accumulate);
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
  call_once(tensors, [&](Ops& ops) { ops(args); });
  EXPECT_EQ(loss, 0.125f);
}

void run_bias(const Values& given) {
  const auto experts = static_cast<std::int64_t>(given.size());
  OpCase op(fmt::format("expert_bias of {} experts", experts));
  const Handle counts = op.input("counts", shape(experts), DType::i32, given);
  const Handle bias =
      op.output("bias", shape(experts), DType::f32, {.terms = 1}, normal_values(shape(experts), 1, 0.1));
  op.call(
      [=](Ops& ops, const Bound& at) { ops(ExpertBiasArgs{.counts = at[counts], .bias = at[bias], .rate = 0.01f}); });
  op.reference([=](Reference& r) {
    const double mean = std::accumulate(r[counts].begin(), r[counts].end(), 0.0) / static_cast<double>(experts);
    for (std::size_t e = 0; e < r[counts].size(); ++e) {
      const double off = mean - r[counts][e];
      const double step = off > 0 ? 0.01 : off < 0 ? -0.01 : 0;
      r.expect(bias, e, r[bias][e] + step, step == 0 ? 0 : std::abs(r[bias][e]) + 0.01);
    }
  });
  op.run();
}

TEST(ExpertBiasOp, MovesTowardsTheMean) {
  run_bias({5});
  run_bias({3, 3, 3});
  run_bias({1, 2, 3, 0, 4, 2});
  run_bias({2e9, 2e9, 2e9, 2e9 - 1});  // no 32 bits hold the sum, no float the difference
  for (const std::int64_t experts : {31, 100, 512}) run_bias(integer_values(shape(experts), 3, 40));
}

// The fractions of choices, and a skipped step, which leaves the bias alone but not the fractions.
void run_bias_and_shares(const Values& given, double factor) {
  const auto experts = static_cast<std::int64_t>(given.size());
  OpCase op(fmt::format("expert_bias and shares of {} experts, factor {}", experts, factor));
  const Handle counts = op.input("counts", shape(experts), DType::i32, given);
  const Handle grad_factor = op.input("grad_factor", shape(1), DType::f32, {factor});
  const Handle bias =
      op.output("bias", shape(experts), DType::f32, {.terms = 1}, normal_values(shape(experts), 1, 0.1));
  const Handle shares = op.output("shares", shape(experts), DType::f32, {.terms = 1}, {});
  op.call([=](Ops& ops, const Bound& at) {
    ops(ExpertBiasArgs{
        .counts = at[counts], .bias = at[bias], .rate = 0.01f, .shares = at[shares], .grad_factor = at[grad_factor]});
  });
  op.reference([=](Reference& r) {
    const double sum = std::accumulate(r[counts].begin(), r[counts].end(), 0.0);
    for (std::size_t e = 0; e < r[counts].size(); ++e) {
      const double off = sum / static_cast<double>(experts) - r[counts][e];
      const double step = !std::isfinite(factor) ? 0 : off > 0 ? 0.01 : off < 0 ? -0.01 : 0;
      r.expect(bias, e, r[bias][e] + step, step == 0 ? 0 : std::abs(r[bias][e]) + 0.01);
      const double share = sum == 0 ? 0 : r[counts][e] / sum;
      r.expect(shares, e, share, share);
    }
  });
  op.run();
}

TEST(ExpertBiasOp, SharesAndSkippedSteps) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  for (const double factor : {1.0, 0.25, infinity, std::numeric_limits<double>::quiet_NaN()}) {
    run_bias_and_shares({1, 2, 3, 0, 4, 2}, factor);
    run_bias_and_shares({0, 0, 0}, factor);
    run_bias_and_shares(integer_values(shape(300), 3, 40), factor);
  }
}

TEST(BalanceLossOp, RejectsWrongTensors) {
  float memory[16] = {};
  const auto floats = [&](const Shape& s) { return make_tensor(memory, s, DType::f32); };
  const auto integers = [&](const Shape& s) { return make_tensor(memory, s, DType::i32); };
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
    expect_rejected([&](Ops& ops) { ops(args); }, words);
  };
  using A = BalanceLossArgs;
  reject_loss({"balance_loss: counts", "i32"}, [&](A& a) { a.counts = floats(shape(2, 8)); });
  reject_loss({"balance_loss", "a part and an expert"}, [&](A& a) { a.counts = integers(shape(8)); });
  reject_loss({"balance_loss: score_sums is f32[1,8]"}, [&](A& a) { a.score_sums = floats(shape(1, 8)); });
  reject_loss({"balance_loss: scale is f32[2]"}, [&](A& a) { a.scale = floats(shape(2)); });
  reject_loss({"balance_loss: loads is f32[8]"}, [&](A& a) { a.loads = floats(shape(8)); });
  reject_loss({"balance_loss: loss is i32[1]"}, [&](A& a) { a.loss = integers(shape(1)); });
  reject_loss({"balance_loss", "either counts or shares"}, [&](A& a) { a.shares = floats(shape(2, 8)); });
  reject_loss({"balance_loss", "either counts or shares"}, [&](A& a) { a.counts = {}; });
  reject_loss({"balance_loss", "coefficient"}, [&](A& a) { a.coefficient = -1; });
  reject_loss({"balance_loss", "topk and rows"}, [&](A& a) { a.rows = 0; });
  reject_loss({"balance_loss", "topk and rows"}, [&](A& a) { a.topk = 0; });
}

TEST(ExpertBiasOp, RejectsWrongTensors) {
  float memory[16] = {};
  const auto floats = [&](const Shape& s) { return make_tensor(memory, s, DType::f32); };
  const auto integers = [&](const Shape& s) { return make_tensor(memory, s, DType::i32); };
  const auto reject_bias = [&](const Tensor& counts, const Tensor& bias, float rate, std::vector<std::string> words) {
    expect_rejected([&](Ops& ops) { ops(ExpertBiasArgs{counts, bias, rate}); }, words);
  };
  reject_bias(floats(shape(8)), floats(shape(8)), 1, {"expert_bias: counts is f32[8]"});
  reject_bias(integers(shape(1, 8)), floats(shape(8)), 1, {"expert_bias", "one dim"});
  reject_bias(integers(shape(8)), floats(shape(7)), 1, {"expert_bias: bias is f32[7]"});
  reject_bias(integers(shape(8)), {}, 1, {"expert_bias", "something to change"});
  reject_bias(integers(shape(8)), floats(shape(8)), -1, {"expert_bias", "rate"});
}

}  // namespace
}  // namespace tera::test
