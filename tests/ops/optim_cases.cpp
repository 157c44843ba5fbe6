#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/support/op_test.h"

#include "tera/ops/optim.h"

namespace tera::test {
namespace {

constexpr double lr = 0.01, correction1 = 0.19, correction2 = 0.02;
constexpr double infinity = std::numeric_limits<double>::infinity();
const double not_a_number = std::nan("");

struct StepCase {
  std::int64_t n;
  DType copy = DType::f32;
  bool with_copy = false, clear_grad = false, momentum = false;
  double grad_factor = 0.5;
  DType m = DType::f32, v = DType::f32;  // dtypes of Adam's moments

  bool skipped() const { return !std::isfinite(grad_factor); }
};

std::string name_of_case(const char* op, const StepCase& c) {
  return fmt::format("{} [{}] copy {} {} clear {} momentum {} factor {} m {} v {}", op, c.n, c.with_copy,
                     name_of(c.copy), c.clear_grad, c.momentum, c.grad_factor, name_of(c.m), name_of(c.v));
}

std::vector<StepCase> step_cases() {
  std::vector<StepCase> cases{{.n = 1}, {.n = 37}, {.n = 40000, .clear_grad = true, .momentum = true}};
  for (DType dtype : float_dtypes)
    for (bool clear : {false, true})
      cases.push_back({.n = 133, .copy = dtype, .with_copy = true, .clear_grad = clear, .momentum = clear});
  for (double factor : {not_a_number, infinity, -infinity})  // skipped
    for (bool clear : {false, true})
      cases.push_back({.n = 133,
                       .copy = clear ? DType::bf16 : DType::f16,
                       .with_copy = true,
                       .clear_grad = clear,
                       .momentum = true,
                       .grad_factor = factor});
  return cases;
}

struct MomentTypes {
  DType m, v;
};
constexpr MomentTypes rounded_moments[] = {
    {DType::bf16, DType::bf16}, {DType::bf16, DType::f32}, {DType::f32, DType::bf16}};

// Handles of the tensors that a step of either optimizer changes.
struct StepTensors {
  Handle weight, grad, copy, scalars;
};
StepTensors add_tensors(OpCase& op, const StepCase& c) {
  const Shape s = shape(c.n);
  const OpCase::Extra updated{.terms = c.skipped() ? 0 : 4};
  return {.weight = op.output("weight", s, DType::f32, updated, normal_values(s, 1)),
          .grad = op.output("grad", s, DType::f32, {.terms = 0}, normal_values(s, 2)),
          .copy = op.output("copy", s, c.copy, updated),
          .scalars = op.input("scalars", shape(4), DType::f32, {lr, correction1, correction2, c.grad_factor})};
}
void expect_weight(Reference& r, const StepTensors& t, const StepCase& c, std::size_t i, double weight, double size) {
  r.expect(t.weight, i, c.skipped() ? r[t.weight][i] : weight, size);
  r.expect(t.copy, i, c.with_copy && !c.skipped() ? weight : r[t.copy][i], size);
  r.expect(t.grad, i, c.clear_grad ? 0 : r[t.grad][i], 0);
}

OpCase adam_case(const StepCase& c) {
  OpCase op(name_of_case("adam", c));
  const double beta1 = 0.9, beta2 = 0.9999;  // float(1) - float(beta2) would be off by 1.7e-4
  const float eps = 1e-3f, decay = 0.1f;
  const StepTensors t = add_tensors(op, c);
  Values v_values = normal_values(shape(c.n), 4, 0.1);
  for (double& v : v_values) v *= v;
  const Handle m = op.output("m", shape(c.n), c.m, {.terms = 2}, normal_values(shape(c.n), 3));
  const Handle v = op.output("v", shape(c.n), c.v, {.terms = 2}, v_values);
  op.call([=](Ops& ops, const Bound& at) {
    ops(AdamArgs{.weight = at[t.weight],
                 .grad = at[t.grad],
                 .m = at[m],
                 .v = at[v],
                 .copy = c.with_copy ? at[t.copy] : Tensor{},
                 .scalars = at[t.scalars],
                 .beta1 = beta1,
                 .beta2 = beta2,
                 .eps = eps,
                 .weight_decay = decay,
                 .clear_grad = c.clear_grad});
  });
  op.reference([=](Reference& r) {
    const double b1 = beta1, b2 = beta2;
    const Values& s = r[t.scalars];
    for (std::size_t i = 0; i < r[t.weight].size(); ++i) {
      const double g = r[t.grad][i] * s[3], w = r[t.weight][i];
      const double new_m = b1 * r[m][i] + (1 - b1) * g, new_v = b2 * r[v][i] + (1 - b2) * g * g;
      const double denominator = std::sqrt(new_v / s[2]) + static_cast<double>(eps);
      r.expect(m, i, c.skipped() ? r[m][i] : new_m, std::abs(r[m][i]) + std::abs(g));
      r.expect(v, i, c.skipped() ? r[v][i] : new_v, new_v);
      const double step = new_m / s[1] / denominator, shrink = static_cast<double>(decay) * w;
      const double size = std::abs(w) + s[0] * (std::abs(r[m][i]) + std::abs(g)) / s[1] / denominator;
      expect_weight(r, t, c, i, w - s[0] * (step + shrink), size);
    }
  });
  return op;
}

Values random_integers(std::int64_t n, std::uint64_t seed, double limit) {
  Values values = normal_values(shape(n), seed, limit / 2);
  for (double& value : values) value = std::round(std::clamp(value, -limit, limit));
  return values;
}

// Several steps in which all of a moment is exact in fp32, so that what is stored must be just its rounding, to nearest
// and of two equally near to the even one. The weight has a tolerance of fp32: it must move by what moments were before
// they were rounded. ties counts the elements that lay in the middle between two of bf16.
OpCase exact_moments_case(const MomentTypes& types, std::int64_t n, int steps, std::int64_t& ties) {
  OpCase op(fmt::format("adam [{}] m {} v {}, {} exact steps", n, name_of(types.m), name_of(types.v), steps));
  const double beta1 = 0.5, beta2 = 0.75;
  const float eps = 0.5f;
  const Shape s = shape(n);
  Values squares = random_integers(n, 4, 200);
  for (double& value : squares) value *= value;
  const Handle weight = op.output("weight", s, DType::f32, {.terms = 4 * steps}, normal_values(s, 1));
  const Handle grad = op.input("grad", s, DType::f32, random_integers(n, 2, 500));
  const Handle m = op.output("m", s, types.m, {.terms = 0}, random_integers(n, 3, 250));
  const Handle v = op.output("v", s, types.v, {.terms = 0}, squares);
  const Handle scalars = op.input("scalars", shape(4), DType::f32, {lr, correction1, correction2, 0.5});
  op.call([=](Ops& ops, const Bound& at) {
    for (int step = 0; step < steps; ++step)
      ops(AdamArgs{.weight = at[weight],
                   .grad = at[grad],
                   .m = at[m],
                   .v = at[v],
                   .copy = {},
                   .scalars = at[scalars],
                   .beta1 = beta1,
                   .beta2 = beta2,
                   .eps = eps});
  });
  op.reference([=, &ties](Reference& r) {
    const auto is_tie = [](double value) {  // nine significant bits, and the last of them is set
      int exponent = 0;
      const double digits = std::ldexp(std::frexp(value, &exponent), 9);
      return digits == std::round(digits) && std::fmod(digits, 2) != 0;
    };
    const Values& with = r[scalars];
    for (std::size_t i = 0; i < r[weight].size(); ++i) {
      const double g = r[grad][i] * with[3];
      double now = r[weight][i], new_m = r[m][i], new_v = r[v][i], size = std::abs(now);
      for (int step = 0; step < steps; ++step) {
        new_m = beta1 * new_m + (1 - beta1) * g;
        new_v = beta2 * new_v + (1 - beta2) * g * g;
        ties += is_tie(new_m) || is_tie(new_v) ? 1 : 0;
        const double move = with[0] * (new_m / with[1]) / (std::sqrt(new_v / with[2]) + static_cast<double>(eps));
        now -= move;
        size += std::abs(move);
        new_m = OpCase::stored(types.m, new_m);
        new_v = OpCase::stored(types.v, new_v);
      }
      r.expect(weight, i, now, size);
      r.expect(m, i, new_m, 0);
      r.expect(v, i, new_v, 0);
    }
  });
  return op;
}

OpCase sgd_case(const StepCase& c) {
  OpCase op(name_of_case("sgd", c));
  const float momentum = c.momentum ? 0.8f : 0.0f, decay = 0.1f;
  const StepTensors t = add_tensors(op, c);
  const Handle buffer =
      op.output("momentum_buffer", shape(c.n), DType::f32, {.terms = 3}, normal_values(shape(c.n), 3));
  op.call([=](Ops& ops, const Bound& at) {
    ops(SgdArgs{.weight = at[t.weight],
                .grad = at[t.grad],
                .momentum_buffer = c.momentum ? at[buffer] : Tensor{},
                .copy = c.with_copy ? at[t.copy] : Tensor{},
                .scalars = at[t.scalars],
                .momentum = momentum,
                .weight_decay = decay,
                .clear_grad = c.clear_grad});
  });
  op.reference([=](Reference& r) {
    for (std::size_t i = 0; i < r[t.weight].size(); ++i) {
      const double w = r[t.weight][i], kept = static_cast<double>(momentum) * r[buffer][i];
      const double direction = kept + r[t.scalars][3] * r[t.grad][i] + static_cast<double>(decay) * w;
      const double size = std::abs(kept) + std::abs(r[t.grad][i]) + std::abs(w);
      r.expect(buffer, i, c.momentum && !c.skipped() ? direction : r[buffer][i], size);
      expect_weight(r, t, c, i, w - r[t.scalars][0] * direction, size);
    }
  });
  return op;
}

// A loss scale of 0 is none.
OpCase clip_case(const Values& sums, float max_norm, double scale = 0) {
  OpCase op(fmt::format("clip {} sums to {}, loss scale {}", sums.size(), max_norm, scale));
  const Handle state = op.input("state", shape(5), DType::f64, {scale, 3, 1, 7, 0});
  const Handle in = op.input("sums", shape(sums.size()), DType::f64, sums);
  const Handle norm = op.output("norm", shape(1), DType::f32, {}),
               factor = op.output("factor", shape(1), DType::f32, {});
  op.call([=](Ops& ops, const Bound& at) {
    ops(ClipArgs{.sums = at[in],
                 .norm = at[norm],
                 .factor = at[factor],
                 .state = scale > 0 ? at[state] : Tensor{},
                 .max_norm = max_norm});
  });
  op.reference([=](Reference& r) {
    double total = 0;
    for (double s : r[in]) total += s;
    const double by = scale > 0 ? scale : 1, length = std::sqrt(total) / by, limit = static_cast<double>(max_norm);
    const double clipped = limit == 0 ? 1 : std::min(1.0, limit / (length + 1e-6));
    const double ratio = std::isfinite(static_cast<float>(length)) ? clipped / by : not_a_number;
    r.expect(norm, 0, OpCase::stored(DType::f32, length), length);  // infinite beyond fp32's range
    r.expect(factor, 0, ratio, ratio);
  });
  return op;
}

OpCase scale_loss_case(std::int64_t n, double scale) {
  OpCase op(fmt::format("scale_loss [{}] by {}", n, scale));
  const Handle x = op.input("x", shape(n), DType::f32, normal_values(shape(n), 6));
  const Handle state = op.input("state", shape(5), DType::f64, {scale, 3, 1, 7, 0});
  const Handle out = op.output("out", shape(n), DType::f32, {.terms = 0});
  op.call([=](Ops& ops, const Bound& at) { ops(ScaleLossArgs{.x = at[x], .state = at[state], .out = at[out]}); });
  op.reference([=](Reference& r) {
    for (std::size_t i = 0; i < r[x].size(); ++i) r.expect(out, i, OpCase::stored(DType::f32, r[x][i] * scale), 0);
  });
  return op;
}

struct ScaleValues {
  double scale, good_steps, hysteresis;
};

// One step of the loss scale from one state to another, which the table below gives.
OpCase count_step_case(const ScaleValues& from, bool overflow, const ScaleValues& to, const LossScaleRule& rule,
                       bool after_skip) {
  OpCase op(fmt::format("count_step from {} {} {}, overflow {}, after a skip {}", from.scale, from.good_steps,
                        from.hysteresis, overflow, after_skip));
  const double beta1 = 0.9, beta2 = 0.9999, updates = 41;
  const Handle state = op.output("state", shape(5), DType::f64, {.terms = 0},
                                 {from.scale, from.good_steps, from.hysteresis, updates, after_skip ? 1.0 : 0.0});
  const Handle scalars = op.output("scalars", shape(4), DType::f32, {}, {9, 9, 9, overflow ? not_a_number : 0.25});
  const Handle rates = op.input("rates", shape(2), DType::f32, {0.5, 0.125});
  op.call([=](Ops& ops, const Bound& at) {
    ops(CountStepArgs{
        .state = at[state], .scalars = at[scalars], .rates = at[rates], .beta1 = beta1, .beta2 = beta2, .rule = rule});
  });
  op.reference([=](Reference& r) {
    const double after[] = {to.scale, to.good_steps, to.hysteresis, updates + (overflow ? 0 : 1), overflow ? 1.0 : 0.0};
    for (std::size_t i = 0; i < 5; ++i) r.expect(state, i, after[i], 0);
    r.expect(scalars, 0, after_skip ? 0.125 : 0.5, 0);
    r.expect(scalars, 1, 1 - std::pow(beta1, updates + 1), 1);
    r.expect(scalars, 2, 1 - std::pow(beta2, updates + 1), 1);
    r.expect(scalars, 3, overflow ? not_a_number : 0.25, 0);
  });
  return op;
}

Values normal_squares(std::int64_t n) {
  Values values = normal_values(shape(n), 5);
  for (double& value : values) value *= value;
  return values;
}

TEST(OptimOp, Adam) {
  for (const StepCase& c : step_cases()) adam_case(c).run();
}

TEST(OptimOp, AdamWithMomentsInBf16) {
  for (const MomentTypes& types : rounded_moments)
    for (StepCase c : step_cases()) {
      c.m = types.m;
      c.v = types.v;
      adam_case(c).run();
    }
}

TEST(OptimOp, MomentsInBf16AreRoundedToNearestEven) {
  std::int64_t ties = 0;
  for (const MomentTypes& types : rounded_moments)
    for (const std::int64_t n : {1, 133, 3000})
      for (const int steps : {1, 4}) exact_moments_case(types, n, steps, ties).run();
  EXPECT_GT(ties, 100);
}

TEST(OptimOp, Sgd) {
  for (const StepCase& c : step_cases()) sgd_case(c).run();
}

TEST(OptimOp, Clip) {
  clip_case({4, 5, 16}, 1).run();  // norm 5
  clip_case({0.25}, 1).run();      // below: untouched
  clip_case({4, 5, 16}, 0).run();  // no clipping
  clip_case({0, 0}, 1).run();
  for (float max_norm : {0.0f, 1.0f})  // a broken gradient stays visible
    for (double broken : {not_a_number, infinity, 1e300}) clip_case({1, broken, 2}, max_norm).run();
  clip_case(normal_squares(1000), 1).run();
}

TEST(OptimOp, ClipTakesTheLossScaleOut) {
  for (double scale : {1.0, 1024.0, 0x1p32, 1000.1}) {
    clip_case({4 * scale * scale, 5 * scale * scale, 16 * scale * scale}, 1, scale).run();
    clip_case({0.25 * scale * scale}, 1, scale).run();
    clip_case({4 * scale * scale}, 0, scale).run();
    for (double broken : {not_a_number, infinity}) clip_case({1, broken, 2}, 1, scale).run();
  }
  clip_case({1e80}, 1, 0x1p32).run();  // large, but not its root over the scale
}

TEST(OptimOp, ScaleLoss) {
  for (double scale : {1.0, 65536.0, 1000.1, 0x1p126}) scale_loss_case(3, scale).run();
  scale_loss_case(1, 0.5).run();
  scale_loss_case(1000, 8).run();
}

// A loss scale table by hand: it doubles after three good steps in a row, which resets the count of overflows; the
// first overflow is tolerated, and from the second on each halves the scale, down to 2, until it has doubled again.
TEST(OptimOp, TheLossScaleFollowsOverflows) {
  const LossScaleRule rule{.dynamic = true, .min_scale = 2, .window = 3, .hysteresis = 2};
  struct Row {
    bool overflow;
    ScaleValues after;
  };
  const Row rows[] = {{false, {16, 1, 2}}, {false, {16, 2, 2}}, {true, {16, 0, 1}}, {false, {16, 1, 1}},
                      {false, {16, 2, 1}}, {false, {32, 0, 2}}, {true, {32, 0, 1}}, {true, {16, 0, 0}},
                      {true, {8, 0, 0}},   {false, {8, 1, 0}},  {true, {4, 0, 0}},  {true, {2, 0, 0}},
                      {true, {2, 0, 0}},   {false, {2, 1, 0}},  {false, {2, 2, 0}}, {false, {4, 0, 2}},
                      {false, {4, 1, 2}},  {true, {4, 0, 1}},   {false, {4, 1, 1}}, {true, {2, 0, 0}}};
  ScaleValues before{16, 0, 2};
  bool skipped = false;
  for (const Row& row : rows) {
    count_step_case(before, row.overflow, row.after, rule, skipped).run();
    before = row.after;
    skipped = row.overflow;
  }
}

TEST(OptimOp, TheLossScaleAtItsEnds) {
  const LossScaleRule rule{.dynamic = true, .min_scale = 1, .window = 1, .hysteresis = 1};
  count_step_case({max_loss_scale, 0, 1}, false, {max_loss_scale, 0, 1}, rule, false).run();
  count_step_case({1.5, 0, 1}, true, {1, 0, 0}, rule, false).run();
  count_step_case({8, 5, 1}, false, {16, 0, 1}, rule, false).run();  // 5 good steps: the run had a longer window
  const LossScaleRule constant{.dynamic = false, .min_scale = 1, .window = 1, .hysteresis = 1};
  for (bool overflow : {false, true}) count_step_case({64, 0, 1}, overflow, {64, 0, 1}, constant, true).run();
}

TEST(OptimOp, RejectsWrongScales) {
  double memory[64] = {};
  const Tensor state = make_tensor(memory, shape(5), DType::f64), four = make_tensor(memory, shape(4), DType::f32);
  const Tensor rates = make_tensor(memory, shape(2), DType::f32);
  expect_rejected([&](Ops& ops) { ops(ScaleLossArgs{.x = four, .state = four, .out = four}); },
                  {"scale_loss: state is f32[4]"});
  expect_rejected([&](Ops& ops) { ops(ScaleLossArgs{.x = four, .state = state, .out = rates}); },
                  {"scale_loss: out is f32[2]"});
  expect_rejected([&](Ops& ops) { ops(CountStepArgs{.state = state, .scalars = four, .rates = four}); },
                  {"count_step: rates is f32[4]"});
  expect_rejected([&](Ops& ops) { ops(CountStepArgs{.state = state, .scalars = rates, .rates = rates}); },
                  {"count_step: scalars is f32[2]"});
  expect_rejected(
      [&](Ops& ops) { ops(CountStepArgs{.state = state, .scalars = four, .rates = rates, .rule = {.window = 0}}); },
      {"count_step", "window"});
}

TEST(OptimOp, RejectsWrongTensors) {
  double memory[64] = {};
  const Tensor w = make_tensor(memory, shape(8), DType::f32), scalars = make_tensor(memory, shape(4), DType::f32);
  const Tensor sums = make_tensor(memory, shape(3), DType::f64), one = make_tensor(memory, shape(1), DType::f32);
  expect_rejected([&](Ops& ops) { ops(AdamArgs{.weight = w, .grad = w, .m = w, .v = scalars, .scalars = scalars}); },
                  {"adam: v is f32[4]"});
  const Tensor half = make_tensor(memory, shape(8), DType::f16), rounded = make_tensor(memory, shape(8), DType::bf16);
  expect_rejected([&](Ops& ops) { ops(AdamArgs{.weight = w, .grad = w, .m = w, .v = half, .scalars = scalars}); },
                  {"adam", "moments are f32 or bf16"});
  expect_rejected([&](Ops& ops) { ops(AdamArgs{.weight = w, .grad = rounded, .m = w, .v = w, .scalars = scalars}); },
                  {"adam: grad is bf16[8]"});
  expect_rejected([&](Ops& ops) { ops(AdamArgs{.weight = w, .grad = w, .m = w, .v = w, .scalars = w}); },
                  {"adam: scalars is f32[8]"});
  expect_rejected([&](Ops& ops) { ops(AdamArgs{.weight = sums, .grad = w, .m = w, .v = w, .scalars = scalars}); },
                  {"adam: weight is f64[3]"});
  expect_rejected([&](Ops& ops) { ops(SgdArgs{.weight = w, .grad = w, .scalars = scalars, .momentum = 0.9f}); },
                  {"sgd", "buffer"});
  expect_rejected([&](Ops& ops) { ops(SgdArgs{.weight = w, .grad = scalars, .scalars = scalars}); },
                  {"sgd: grad is f32[4]"});
  expect_rejected([&](Ops& ops) { ops(ClipArgs{.sums = w, .norm = one, .factor = one}); }, {"clip: sums is f32[8]"});
  expect_rejected([&](Ops& ops) { ops(ClipArgs{.sums = sums, .norm = one, .factor = one, .max_norm = -1}); },
                  {"clip", "max_norm"});
}

}  // namespace
}  // namespace tera::test
