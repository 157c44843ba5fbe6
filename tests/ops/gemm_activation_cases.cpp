// A fused GEMM and activation. Operands are small integers over powers of two, so that sums are exact in any order and
// their rounding to storage is known: a wrong tile, or a sum that is not rounded before the activation, shows.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/op_test.h"

#include "tera/ops/copy.h"
#include "tera/ops/gemm.h"
#include "tera/ops/gemm_activation.h"
#include "tera/ops/pointwise.h"

namespace tera::test {
namespace {

struct GatedCase {
  std::int64_t rows, width, k;  // width: of act
  DType dtype;
  bool bias = false;  // no kernel fuses it with the activation
  std::string name() const {
    return fmt::format("{} [{},{}] of {} terms{}", name_of(dtype), rows, width, k, bias ? " and a bias" : "");
  }
};

// Fewer rows than the GPU has a kernel for; edges in every direction; several tiles and more terms than the pipeline's
// stages hold; sizes that the kernel does not support.
std::vector<GatedCase> gated_cases() {
  std::vector<GatedCase> cases;
  for (DType dtype : float_dtypes) {
    cases.push_back({1, 8, 8, dtype});
    cases.push_back({67, 72, 200, dtype});
    cases.push_back({150, 72, 200, dtype});
    cases.push_back({300, 136, 72, dtype});
    cases.push_back({5, 12, 20, dtype});
    cases.push_back({5, 16, 24, dtype, true});
  }
  cases.push_back({260, 264, 264, DType::bf16});
  return cases;
}

Values random_integers(const Shape& of, std::uint64_t seed, double unit) {
  Values values = normal_values(of, seed);
  for (double& value : values) value = unit * std::fmin(3, std::fmax(-3, std::round(value)));
  return values;
}

double silu(double x) { return x / (1 + std::exp(-x)); }
double silu_slope(double x) {
  const double s = 1 / (1 + std::exp(-x));
  return s + x * s * (1 - s);
}

// sum of a[row, i] b(i).
template <class At>
double dot(const Values& a, std::size_t row, std::size_t k, const At& b) {
  double sum = 0;
  for (std::size_t i = 0; i < k; ++i) sum += a[row * k + i] * b(i);
  return sum;
}

OpCase forward_case(const GatedCase& c) {
  OpCase op("gemm_activation " + c.name());
  const Shape all = shape(c.rows, c.k), weights = shape(2 * c.width, c.k);
  const Handle a = op.input("a", all, c.dtype, random_integers(all, 1, 0.5));
  const Handle b = op.input("b", weights, c.dtype, random_integers(weights, 2, 0.125));
  const Handle bias = op.input("bias", shape(2 * c.width), c.dtype, random_integers(shape(2 * c.width), 3, 0.25));
  const Handle x = op.output("x", shape(c.rows, 2 * c.width), c.dtype, {.terms = 0});
  const Handle act = op.output("act", shape(c.rows, c.width), c.dtype, {.terms = 4});
  op.call([=](Ops& ops, const Bound& at) {
    ops(GemmActivationArgs{
        .gemm = {.a = at[a], .b = at[b], .out = at[x], .bias = c.bias ? at[bias] : Tensor{}, .trans_b = true},
        .activation = {.kind = Activation::swiglu, .x = at[x], .y = at[act]}});
  });
  op.reference([=](Reference& r) {
    const auto width = static_cast<std::size_t>(c.width), k = static_cast<std::size_t>(c.k);
    for (std::size_t row = 0; row < static_cast<std::size_t>(c.rows); ++row) {
      const auto sum = [&](std::size_t column) {
        const double gemm = dot(r[a], row, k, [&](std::size_t i) { return r[b][column * k + i]; });
        const double value = OpCase::stored(c.dtype, gemm + (c.bias ? r[bias][column] : 0));
        r.expect(x, row * 2 * width + column, value, 0);
        return value;
      };
      for (std::size_t column = 0; column < width; ++column) {
        const double gate = sum(column), up = sum(width + column), value = silu(gate) * up;
        r.expect(act, row * width + column, value, std::abs(value) + std::abs(gate * up));
      }
    }
  });
  return op;
}

OpCase backward_case(const GatedCase& c, bool in_place) {
  OpCase op("gemm_activation_back " + c.name() + (in_place ? " in place" : ""));
  const Shape all = shape(c.rows, c.k), weights = shape(c.k, c.width), both = shape(c.rows, 2 * c.width);
  const Values x_values = normal_values(both, 4, 2);
  const Handle a = op.input("a", all, c.dtype, random_integers(all, 1, 0.5));
  const Handle b = op.input("b", weights, c.dtype, random_integers(weights, 2, 0.125));
  const Handle x =
      in_place ? op.output("x", both, c.dtype, {.terms = 8}, x_values) : op.input("x", both, c.dtype, x_values);
  const Handle dx = in_place ? x : op.output("dx", both, c.dtype, {.terms = 8});
  const Handle scratch = op.output("room", shape(c.rows, c.width), c.dtype, {.terms = 0});
  op.call([=](Ops& ops, const Bound& at) {
    ops(GemmActivationBackArgs{
        .gemm = {.a = at[a], .b = at[b], .out = at[scratch]},
        .activation = {.kind = Activation::swiglu, .dy = at[scratch], .x = at[x], .dx = at[dx]}});
    ops(FillArgs{.out = at[scratch], .value = 0});  // the call leaves undefined values there
  });
  op.reference([=](Reference& r) {
    const auto width = static_cast<std::size_t>(c.width), k = static_cast<std::size_t>(c.k);
    for (std::size_t row = 0; row < static_cast<std::size_t>(c.rows); ++row)
      for (std::size_t column = 0; column < width; ++column) {
        const std::size_t gate_at = row * 2 * width + column, up_at = gate_at + width;
        const double gate = r[x][gate_at], up = r[x][up_at];
        const double dact =
            OpCase::stored(c.dtype, dot(r[a], row, k, [&](std::size_t i) { return r[b][i * width + column]; }));
        r.expect(dx, gate_at, dact * up * silu_slope(gate), std::abs(dact * up) * (2 + std::abs(gate)));
        r.expect(dx, up_at, dact * silu(gate), std::abs(dact) * (1 + std::abs(gate)));
        r.expect(scratch, row * width + column, 0, 0);
      }
  });
  return op;
}

TEST(GemmActivationOp, Forward) {
  for (const GatedCase& c : gated_cases()) forward_case(c).run();
}

TEST(GemmActivationOp, Backward) {
  for (const GatedCase& c : gated_cases())
    if (!c.bias)
      for (bool in_place : {false, true}) backward_case(c, in_place).run();
}

TEST(GemmActivationOp, PartsMustFit) {
  float memory[128] = {};
  const auto tensor = [&](int at, Shape s) { return make_tensor(memory + at, s, DType::f32); };
  const GemmArgs gemm{
      .a = tensor(0, shape(2, 3)), .b = tensor(16, shape(4, 3)), .out = tensor(32, shape(2, 4)), .trans_b = true};
  const ActivationArgs of_another{
      .kind = Activation::swiglu, .x = tensor(64, shape(2, 4)), .y = tensor(96, shape(2, 2))};
  expect_rejected([&](Ops& ops) { ops(GemmActivationArgs{.gemm = gemm, .activation = of_another}); },
                  {"gemm_activation", "product's output"});
  const ActivationBackArgs back{.kind = Activation::silu,
                                .dy = tensor(64, shape(2, 4)),
                                .x = tensor(80, shape(2, 4)),
                                .dx = tensor(96, shape(2, 4))};
  expect_rejected([&](Ops& ops) { ops(GemmActivationBackArgs{.gemm = gemm, .activation = back}); },
                  {"gemm_activation_back", "product's output"});
}

}  // namespace
}  // namespace tera::test
