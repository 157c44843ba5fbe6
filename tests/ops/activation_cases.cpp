#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <numeric>

#include "tests/support/op_test.h"

#include "tera/ops/pointwise.h"

namespace tera::test {
namespace {

double gelu(double x) { return 0.5 * x * std::erfc(-x / std::numbers::sqrt2); }
double gelu_tanh(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}
double silu(double x) { return x / (1 + std::exp(-x)); }
double squared_relu(double x) { return x > 0 ? x * x : 0; }

double act(Activation kind, double x) {
  switch (kind) {
    case Activation::gelu:
    case Activation::geglu: return gelu(x);
    case Activation::gelu_tanh:
    case Activation::geglu_tanh: return gelu_tanh(x);
    case Activation::squared_relu: return squared_relu(x);
    case Activation::silu:
    case Activation::swiglu: return silu(x);
  }
  return 0;
}

double slope_at(Activation kind, double x) {
  if (kind == Activation::squared_relu) return x > 0 ? 2 * x : 0;  // differences would step over its kink
  return finite_differences([&](const Values& at) { return act(kind, at[0]); }, {x})[0];
}

struct ActivationCase {
  Activation kind;
  DType dtype;
  std::int64_t rows, width;  // shape of y
  double scale = 2;
};

std::vector<ActivationCase> activation_cases() {
  std::vector<ActivationCase> cases;
  for (const auto& [kind, name] : EnumNames<Activation>::values) {
    for (DType dtype : float_dtypes) {
      cases.push_back({kind, dtype, 1, 1});
      cases.push_back({kind, dtype, 3, 37});
      cases.push_back({kind, dtype, 2, 64, 20});  // far into both tails
    }
    cases.push_back({kind, DType::f32, 300, 131});  // several tasks
  }
  return cases;
}

std::string name_of_case(const char* op, const ActivationCase& c) {
  return fmt::format("{} {} {} [{},{}] scale {}", op, name_of(c.kind), name_of(c.dtype), c.rows, c.width, c.scale);
}

Shape x_shape(const ActivationCase& c) { return shape(c.rows, is_gated(c.kind) ? 2 * c.width : c.width); }

// Indices in x of the gate (or the only input) and of the up value of output i.
struct InputIndices {
  std::size_t gate, up;
};
InputIndices input_indices(const ActivationCase& c, std::size_t i) {
  const auto width = static_cast<std::size_t>(c.width);
  if (!is_gated(c.kind)) return {i, i};
  const std::size_t gate = i / width * 2 * width + i % width;
  return {gate, gate + width};
}

OpCase forward_case(const ActivationCase& c) {
  OpCase op(name_of_case("activation", c));
  const Handle x = op.input("x", x_shape(c), c.dtype, normal_values(x_shape(c), 1, c.scale));
  const Handle y = op.output("y", shape(c.rows, c.width), c.dtype, {.terms = 4});
  op.call([=](Ops& ops, const Bound& at) { ops(ActivationArgs{.kind = c.kind, .x = at[x], .y = at[y]}); });
  op.reference([=](Reference& r) {
    for (std::size_t i = 0; i < r[y].size(); ++i) {
      const auto [gate, up] = input_indices(c, i);
      const double factor = is_gated(c.kind) ? r[x][up] : 1, value = act(c.kind, r[x][gate]) * factor;
      // In the tail of gelu its error is absolute, relative to x.
      r.expect(y, i, value, std::abs(value) + std::abs(r[x][gate] * factor));
    }
  });
  return op;
}

OpCase backward_case(const ActivationCase& c, bool in_place) {
  OpCase op(name_of_case("activation_back", c) + (in_place ? " in place" : ""));
  const Values x_values = normal_values(x_shape(c), 1, c.scale);
  const Handle dy = op.input("dy", shape(c.rows, c.width), c.dtype, normal_values(shape(c.rows, c.width), 2));
  const Handle x = in_place ? op.output("x", x_shape(c), c.dtype, {.terms = 8}, x_values)
                            : op.input("x", x_shape(c), c.dtype, x_values);
  const Handle dx = in_place ? x : op.output("dx", x_shape(c), c.dtype, {.terms = 8});
  op.call([=](Ops& ops, const Bound& at) {
    ops(ActivationBackArgs{.kind = c.kind, .dy = at[dy], .x = at[x], .dx = at[dx]});
  });
  op.reference([=](Reference& r) {
    for (std::size_t i = 0; i < r[dy].size(); ++i) {
      const auto [gate, up] = input_indices(c, i);
      const double v = r[x][gate], factor = is_gated(c.kind) ? r[x][up] : 1;
      const double slope = slope_at(c.kind, v);
      r.expect(dx, gate, r[dy][i] * factor * slope, std::abs(r[dy][i] * factor) * (1 + std::abs(v) + std::abs(slope)));
      if (is_gated(c.kind)) {
        const double value = r[dy][i] * act(c.kind, v);
        r.expect(dx, up, value, std::abs(r[dy][i]) * (1 + std::abs(v)));
      }
    }
  });
  return op;
}

// Rows of experts: a source for each row, no two the same; some rows are padding, the last ones belong to no group.
struct Sources {
  explicit Sources(std::int64_t rows) : weights_shape(shape(rows + 1, 2)), of_row(static_cast<std::size_t>(rows)) {
    const std::size_t choices = 2 * (of_row.size() + 1);
    std::size_t step = 7;
    while (std::gcd(step, choices) != 1) ++step;
    for (std::size_t i = 0; i < of_row.size(); ++i) of_row[i] = static_cast<double>((3 + i * step) % choices);
    for (std::size_t i = 2; i < of_row.size(); i += 5) of_row[i] = -1;
    for (std::size_t i = of_row.size() - of_row.size() / 4; i < of_row.size(); ++i) of_row[i] = -2;
  }
  Shape weights_shape;
  Values of_row;
};

OpCase weighted_forward_case(const ActivationCase& c) {
  OpCase op(name_of_case("activation with weights", c));
  const Sources rows(c.rows);
  const Handle x = op.input("x", x_shape(c), c.dtype, normal_values(x_shape(c), 1, c.scale));
  const Handle weights = op.input("weights", rows.weights_shape, DType::f32, normal_values(rows.weights_shape, 3));
  const Handle sources = op.input("sources", shape(c.rows), DType::i32, rows.of_row);
  const Handle y = op.output("y", shape(c.rows, c.width), c.dtype, {.terms = 5});
  op.call([=](Ops& ops, const Bound& at) {
    ops(ActivationArgs{.kind = c.kind, .x = at[x], .y = at[y], .weights = at[weights], .sources = at[sources]});
  });
  op.reference([=](Reference& r) {
    for (std::size_t i = 0; i < r[y].size(); ++i) {
      const double source = r[sources][i / static_cast<std::size_t>(c.width)];
      if (source < 0) {
        r.expect(y, i, source == -2 ? 77 : 0, 0);
        continue;
      }
      const auto [gate, up] = input_indices(c, i);
      const double weight = r[weights][static_cast<std::size_t>(source)];
      const double factor = weight * (is_gated(c.kind) ? r[x][up] : 1), value = act(c.kind, r[x][gate]) * factor;
      r.expect(y, i, value, std::abs(value) + std::abs(r[x][gate] * factor));
    }
  });
  return op;
}

OpCase weighted_backward_case(const ActivationCase& c, bool in_place) {
  OpCase op(name_of_case("activation_back with weights", c) + (in_place ? " in place" : ""));
  const Sources rows(c.rows);
  const Values x_values = normal_values(x_shape(c), 1, c.scale);
  const Handle dy = op.input("dy", shape(c.rows, c.width), c.dtype, normal_values(shape(c.rows, c.width), 2));
  const Handle weights = op.input("weights", rows.weights_shape, DType::f32, normal_values(rows.weights_shape, 3));
  const Handle sources = op.input("sources", shape(c.rows), DType::i32, rows.of_row);
  const Handle x = in_place ? op.output("x", x_shape(c), c.dtype, {.terms = 8}, x_values)
                            : op.input("x", x_shape(c), c.dtype, x_values);
  const Handle dx = in_place ? x : op.output("dx", x_shape(c), c.dtype, {.terms = 8});
  const Handle dweights = op.output("dweights", rows.weights_shape, DType::f32, {.terms = c.width});
  op.call([=](Ops& ops, const Bound& at) {
    ops(ActivationBackArgs{.kind = c.kind,
                           .dy = at[dy],
                           .x = at[x],
                           .dx = at[dx],
                           .weights = at[weights],
                           .sources = at[sources],
                           .dweights = at[dweights]});
  });
  op.reference([=](Reference& r) {
    Values sum(r[dweights].size(), 77), magnitude(sum.size());
    for (double source : r[sources])
      if (source >= 0) sum[static_cast<std::size_t>(source)] = 0;
    for (std::size_t i = 0; i < r[dy].size(); ++i) {
      const auto [gate, up] = input_indices(c, i);
      const double source = r[sources][i / static_cast<std::size_t>(c.width)];
      if (source < 0) {
        for (std::size_t at : {gate, up}) r.expect(dx, at, source == -1 ? 0 : r[dx][at], 0);
        continue;
      }
      const auto choice = static_cast<std::size_t>(source);
      const double v = r[x][gate], factor = is_gated(c.kind) ? r[x][up] : 1, slope = slope_at(c.kind, v);
      const double grad = r[dy][i] * r[weights][choice];
      sum[choice] += r[dy][i] * act(c.kind, v) * factor;
      magnitude[choice] += std::abs(r[dy][i] * v * factor) + std::abs(r[dy][i] * act(c.kind, v) * factor);
      r.expect(dx, gate, grad * factor * slope, std::abs(grad * factor) * (1 + std::abs(v) + std::abs(slope)));
      if (is_gated(c.kind)) r.expect(dx, up, grad * act(c.kind, v), std::abs(grad) * (1 + std::abs(v)));
    }
    for (std::size_t i = 0; i < sum.size(); ++i) r.expect(dweights, i, sum[i], magnitude[i]);
  });
  return op;
}

TEST(ActivationOp, Forward) {
  for (const ActivationCase& c : activation_cases()) forward_case(c).run();
}

TEST(ActivationOp, Backward) {
  for (const ActivationCase& c : activation_cases())
    for (bool in_place : {false, true}) backward_case(c, in_place).run();
}

TEST(ActivationOp, WithWeightsOfRows) {
  for (const ActivationCase& c : activation_cases()) {
    weighted_forward_case(c).run();
    for (bool in_place : {false, true}) weighted_backward_case(c, in_place).run();
  }
  for (DType dtype : float_dtypes) {  // rows wider than a block of a GPU, aligned and not
    const ActivationCase wide{Activation::swiglu, dtype, 9, 2312}, odd{Activation::swiglu, dtype, 9, 1031};
    for (const ActivationCase& c : {wide, odd}) {
      weighted_forward_case(c).run();
      weighted_backward_case(c, true).run();
    }
  }
}

// A padding row is zeros, whatever lies in x and dy.
TEST(ActivationOp, PaddingRowsAreZeros) {
  const double nan = std::nan("");
  OpCase op("activation of padding");
  const Handle x = op.input("x", shape(2, 6), DType::f32, Values(12, nan));
  const Handle dy = op.input("dy", shape(2, 3), DType::f32, Values(6, nan));
  const Handle weights = op.input("weights", shape(1, 1), DType::f32, {1});
  const Handle sources = op.input("sources", shape(2), DType::i32, {-1, -2});
  const Handle y = op.output("y", shape(2, 3), DType::f32, {.terms = 0});
  const Handle dx = op.output("dx", shape(2, 6), DType::f32, {.terms = 0});
  const Handle dweights = op.output("dweights", shape(1, 1), DType::f32, {.terms = 0});
  op.call([=](Ops& ops, const Bound& at) {
    ops(ActivationArgs{.x = at[x], .y = at[y], .weights = at[weights], .sources = at[sources]});
    ops(ActivationBackArgs{.dy = at[dy],
                           .x = at[x],
                           .dx = at[dx],
                           .weights = at[weights],
                           .sources = at[sources],
                           .dweights = at[dweights]});
  });
  op.reference([=](Reference& r) {
    for (std::size_t i = 0; i < 6; ++i) r.expect(y, i, i < 3 ? 0 : 77, 0);
    for (std::size_t i = 0; i < 12; ++i) r.expect(dx, i, i < 6 ? 0 : 77, 0);
    r.expect(dweights, 0, 77, 0);
  });
  op.run();
}

TEST(ActivationOp, RejectsWrongWeights) {
  float memory[64] = {};
  const auto tensor = [&](Shape s, DType dtype = DType::f32) { return make_tensor(memory, s, dtype); };
  const ActivationBackArgs good{.dy = tensor(shape(3, 2)),
                                .x = tensor(shape(3, 4)),
                                .dx = tensor(shape(3, 4)),
                                .weights = tensor(shape(4, 2)),
                                .sources = tensor(shape(3), DType::i32),
                                .dweights = tensor(shape(4, 2))};
  EXPECT_NO_THROW(good.check());
  const auto refuses = [&](auto change, const char* words) {
    ActivationBackArgs args = good;
    change(args);
    expect_rejected([&](Ops& ops) { ops(args); }, {"activation", words});
  };
  refuses([&](ActivationBackArgs& a) { a.sources = {}; }, "together");
  refuses([&](ActivationBackArgs& a) { a.weights = {}; }, "together");
  refuses([&](ActivationBackArgs& a) { a.dweights = {}; }, "together");
  refuses([&](ActivationBackArgs& a) { a.weights = a.sources = {}; }, "together");
  refuses([&](ActivationBackArgs& a) { a.weights.dtype = DType::bf16; }, "weights is bf16[4,2]");
  refuses([&](ActivationBackArgs& a) { a.weights = tensor(shape(8)); }, "two dims");
  refuses([&](ActivationBackArgs& a) { a.weights = tensor(shape(4, 3)).slice(1, 0, 2); },
          "weights is f32[4,2] (strided)");
  refuses([&](ActivationBackArgs& a) { a.sources = tensor(shape(3)); }, "sources is f32[3]");
  refuses([&](ActivationBackArgs& a) { a.sources = tensor(shape(2), DType::i32); }, "sources is i32[2]");
  refuses([&](ActivationBackArgs& a) { a.dweights = tensor(shape(2, 4)); }, "dweights is f32[2,4]");
}

TEST(ActivationOp, ExtremeInputs) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const auto& [kind, name] : EnumNames<Activation>::values) {
    if (is_gated(kind)) continue;
    OpCase op(fmt::format("activation {} at extremes", name));
    const Values points{-1e30, -200, -90, -0.0, 90, 200, 1e19, infinity, std::nan("")};
    const auto n = static_cast<std::int64_t>(points.size());
    const Handle x = op.input("x", shape(1, n), DType::f32, points);
    const Handle y = op.output("y", shape(1, n), DType::f32, {.terms = 4});
    const Handle dx = op.output("dx", shape(1, n - 2), DType::f32, {.terms = 4});
    const Handle dy = op.input("dy", shape(1, n - 2), DType::f32, Values(points.size() - 2, 1.0));
    const auto linear_above = [kind = kind](double v) { return kind == Activation::squared_relu ? v * v : v; };
    op.call([=, kind = kind](Ops& ops, const Bound& at) {
      ops(ActivationArgs{.kind = kind, .x = at[x], .y = at[y]});
      ops(ActivationBackArgs{.kind = kind, .dy = at[dy], .x = at[x].slice(1, 0, n - 2), .dx = at[dx]});
    });
    op.reference([=, kind = kind](Reference& r) {
      for (std::size_t i = 0; i < points.size(); ++i) {
        const double v = r[x][i], value = std::isnan(v) ? v : v > 0 ? linear_above(v) : 0;
        r.expect(y, i, value, std::abs(value) + 1e-30);
        if (i >= points.size() - 2) continue;
        const double slope = v == 0 && kind != Activation::squared_relu ? 0.5
                             : v <= 0                                   ? 0
                             : kind == Activation::squared_relu         ? 2 * v
                                                                        : 1;
        r.expect(dx, i, slope, slope + 1e-30);
      }
    });
    op.run();
  }
}

TEST(ActivationOp, RejectsWrongTensors) {
  float memory[64] = {};
  const Tensor x = make_tensor(memory, shape(2, 6), DType::f32), y = make_tensor(memory, shape(2, 3), DType::f32);
  expect_rejected([&](Ops& ops) { ops(ActivationArgs{.kind = Activation::gelu, .x = x, .y = y}); },
                  {"activation: y is f32[2,3]", "[2,6]"});
  expect_rejected([&](Ops& ops) { ops(ActivationArgs{.kind = Activation::swiglu, .x = y, .y = y}); },
                  {"activation", "even"});
  expect_rejected([&](Ops& ops) { ops(ActivationArgs{.kind = Activation::gelu, .x = x.slice(1, 0, 3), .y = y}); },
                  {"activation: x is f32[2,3] (strided)", "dense"});
  expect_rejected([&](Ops& ops) { ops(ActivationBackArgs{.kind = Activation::swiglu, .dy = y, .x = x, .dx = y}); },
                  {"activation_back: dx is f32[2,3]", "[2,6]"});
}

}  // namespace
}  // namespace tera::test
