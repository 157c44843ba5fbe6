#include <fmt/core.h>
#include <gtest/gtest.h>

#include "tests/support/op_test.h"

#include "tera/ops/pointwise.h"

namespace tera::test {
namespace {

// The definition, by the host's generator.
bool kept(RngKey key, std::int64_t row, std::int64_t column, float rate) {
  const auto words = philox(key, static_cast<std::uint64_t>(row), static_cast<std::uint64_t>(column / 4));
  return uniform_from_bits(words[static_cast<std::size_t>(column % 4)]) >= rate;
}

struct DropoutCase {
  DType dtype;
  std::int64_t rows, width;
  float rate;
  bool residual, in_place;
};

OpCase dropout_case(const DropoutCase& c) {
  OpCase op(fmt::format("dropout {} [{},{}] rate {} residual {} in place {}", name_of(c.dtype), c.rows, c.width, c.rate,
                        c.residual, c.in_place));
  const Shape s = shape(c.rows, c.width);
  const RngKey key{0x0123456789abcdefULL};
  Values row_ids(static_cast<std::size_t>(c.rows));
  for (std::size_t t = 0; t < row_ids.size(); ++t) row_ids[t] = static_cast<double>((std::int64_t{5} << 33) - 3 * t);
  const Handle rows = op.input("rows", shape(c.rows), DType::i64, row_ids);
  const Handle x = c.in_place ? op.output("x", s, c.dtype, {.terms = 1}, normal_values(s, 1))
                              : op.input("x", s, c.dtype, normal_values(s, 1));
  const Handle y = c.in_place ? x : op.output("y", s, c.dtype, {.terms = 1});
  const Handle residual = op.input("residual", s, c.dtype, normal_values(s, 2));
  op.call([=](Ops& ops, const Bound& at) {
    ops(DropoutArgs{.x = at[x],
                    .y = at[y],
                    .residual = c.residual ? at[residual] : Tensor{},
                    .rows = at[rows],
                    .rate = c.rate,
                    .key = key});
  });
  op.reference([=](Reference& r) {
    for (std::size_t i = 0; i < r[x].size(); ++i) {
      const auto t = i / static_cast<std::size_t>(c.width);
      const auto column = static_cast<std::int64_t>(i) % c.width;
      const bool stays = kept(key, static_cast<std::int64_t>(r[rows][t]), column, c.rate);
      const double value = stays ? r[x][i] / (1 - static_cast<double>(c.rate)) : 0,
                   add = c.residual ? r[residual][i] : 0;
      r.expect(y, i, value + add, std::abs(value) + std::abs(add));
    }
  });
  return op;
}

TEST(DropoutOp, FollowsTheCounterGenerator) {
  for (DType dtype : float_dtypes)
    for (std::int64_t width : {1, 5, 64, 131})
      for (float rate : {0.0f, 0.1f, 0.75f})
        for (bool residual : {false, true}) dropout_case({dtype, 3, width, rate, residual, width == 5}).run();
  dropout_case({DType::f32, 200, 200, 0.3f, true, false}).run();  // several tasks
}

TEST(DropoutOp, KeepsTheRightFraction) {
  int count = 0;
  for (std::int64_t row = 0; row < 100; ++row)
    for (std::int64_t column = 0; column < 1000; ++column) count += kept({7}, row, column, 0.25f) ? 1 : 0;
  EXPECT_NEAR(count, 75000, 600);  // four standard deviations
}

TEST(DropoutOp, RejectsWrongTensors) {
  double memory[64] = {};
  const Tensor x = make_tensor(memory, shape(2, 6), DType::f32), rows = make_tensor(memory, shape(2), DType::i64);
  expect_rejected([&](Ops& ops) { ops(DropoutArgs{.x = x, .y = x, .rows = rows, .rate = 1}); }, {"dropout", "rate"});
  expect_rejected([&](Ops& ops) { ops(DropoutArgs{.x = x, .y = x, .rows = rows.rows(0, 1), .rate = 0}); },
                  {"dropout: rows is i64[1]"});
  expect_rejected([&](Ops& ops) { ops(DropoutArgs{.x = x, .y = x.rows(0, 1), .rows = rows, .rate = 0}); },
                  {"dropout: y is f32[1,6]"});
  expect_rejected([&](Ops& ops) { ops(DropoutArgs{.x = x, .y = x, .residual = rows, .rows = rows, .rate = 0}); },
                  {"dropout: residual is i64"});
}

}  // namespace
}  // namespace tera::test
