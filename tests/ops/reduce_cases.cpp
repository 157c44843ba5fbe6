#include <fmt/core.h>
#include <gtest/gtest.h>

#include "tests/support/op_test.h"

#include "tera/ops/gemm.h"
#include "tera/ops/loss.h"
#include "tera/ops/optim.h"

namespace tera::test {
namespace {

OpCase column_sum_case(DType dtype, std::int64_t rows, std::int64_t width, std::int64_t gap) {
  OpCase op(fmt::format("column_sum {} [{},{}] gap {}", name_of(dtype), rows, width, gap));
  const Handle x = op.input("x", shape(rows, width), dtype, normal_values(shape(rows, width), 1), {.row_gap = gap});
  const Handle out = op.output("out", shape(width), DType::f32, {.terms = rows}, normal_values(shape(width), 2));
  op.call([=](Ops& ops, const Bound& at) { ops(ColumnSumArgs{.x = at[x], .out = at[out]}); });
  op.reference([=](Reference& r) {
    const auto w = static_cast<std::size_t>(width);
    for (std::size_t i = 0; i < w; ++i) {
      double sum = r[out][i], size = std::abs(sum);
      for (std::size_t t = 0; t < static_cast<std::size_t>(rows); ++t) {
        sum += r[x][t * w + i];
        size += std::abs(r[x][t * w + i]);
      }
      r.expect(out, i, sum, size);
    }
  });
  return op;
}

// fp64 inside, so the result is that of an fp64 loop but for fp64's own rounding.
OpCase sum_case(std::int64_t n, bool squares, bool accumulate) {
  OpCase op(fmt::format("{} of {} accumulate {}", squares ? "sum_squares" : "sum", n, accumulate));
  const Handle x = op.input("x", shape(n), DType::f32, normal_values(shape(n), 1));
  const Handle out = op.output("out", shape(1), DType::f64, {.rounded_inside = true, .inside = DType::f64}, {3.25});
  op.call([=](Ops& ops, const Bound& at) {
    if (squares)
      ops(SumSquaresArgs{.x = at[x], .out = at[out]});
    else
      ops(SumArgs{.x = at[x], .out = at[out], .accumulate = accumulate});
  });
  op.reference([=](Reference& r) {
    long double total = accumulate ? 3.25L : 0.0L, size = total;
    for (double v : r[x]) {
      total += squares ? static_cast<long double>(v) * v : static_cast<long double>(v);
      size += std::abs(squares ? v * v : v);
    }
    r.expect(out, 0, static_cast<double>(total),
             static_cast<double>(size) * 1e-6);  // 1e-14 after tolerance's fp32 part
  });
  return op;
}

TEST(ReduceOp, ColumnSum) {
  for (DType dtype : float_dtypes) {
    for (const auto& [rows, width] : {std::pair{1, 1}, {6, 5}, {33, 64}, {200, 19}})
      column_sum_case(dtype, rows, width, 0).run();
    column_sum_case(dtype, 70, 20, 13).run();
    column_sum_case(dtype, 9000, 16, 8).run();  // blocks of many rows
  }
  column_sum_case(DType::f32, 40, 700, 0).run();
  column_sum_case(DType::f32, 5000, 3, 0).run();
}

TEST(ReduceOp, Sums) {
  for (bool squares : {false, true})
    for (std::int64_t n : {1, 31, 64, 1000, 16384, 16385, 70001}) sum_case(n, squares, false).run();
  sum_case(100, false, true).run();
}

TEST(ReduceOp, RejectsWrongTensors) {
  double memory[64] = {};
  const Tensor x = make_tensor(memory, shape(2, 6), DType::f32), one = make_tensor(memory, shape(1), DType::f64);
  expect_rejected([&](Ops& ops) { ops(ColumnSumArgs{.x = x, .out = one}); }, {"column_sum: out is f64[1]"});
  expect_rejected([&](Ops& ops) { ops(ColumnSumArgs{.x = one, .out = one}); }, {"column_sum: x is f64[1]"});
  expect_rejected([&](Ops& ops) { ops(SumArgs{.x = x, .out = x}); }, {"sum: out is f32[2,6]", "f64"});
  expect_rejected([&](Ops& ops) { ops(SumArgs{.x = x.slice(1, 0, 2), .out = one}); }, {"sum: x is f32[2,2] (strided)"});
  expect_rejected([&](Ops& ops) { ops(SumSquaresArgs{.x = one, .out = one}); }, {"sum_squares: x is f64[1]"});
}

}  // namespace
}  // namespace tera::test
