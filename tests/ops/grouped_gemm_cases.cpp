// Grouped GEMM against loops in double: groups of every kind of size, and rows of NaN after all groups.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "tera/backend/cpu/cpu_ops.h"
#include "tera/backend/plan/plan_ops.h"
#include "tera/base/error.h"
#include "tera/base/joined.h"
#include "tera/ops/grouped_gemm.h"
#include "tests/support/gpu.h"
#include "tests/support/op_test.h"

namespace tera::test {
namespace {

using Sizes = std::vector<std::int64_t>;

struct GroupedCase {
  Sizes sizes;            // rows of each group
  std::int64_t width, n;  // columns of a and of the result
  DType in = DType::f32, out = DType::f32;
  bool trans_b = false;
  std::int64_t unused_rows = 3;  // rows after the last group

  std::int64_t groups() const { return static_cast<std::int64_t>(sizes.size()); }
  std::int64_t used() const { return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}); }
  std::int64_t rows() const { return used() + unused_rows; }
  std::string name(const char* op) const {
    return fmt::format("{} [{},{}]x{} {}->{} trans_b {} groups {}", op, rows(), width, n, name_of(in), name_of(out),
                       trans_b, joined(sizes, " "));
  }
  Values offsets() const {
    Values out_values{0};
    for (std::int64_t size : sizes) out_values.push_back(out_values.back() + static_cast<double>(size));
    return out_values;
  }
  // Rows of values; those after the last group are NaN.
  Values row_values(std::int64_t columns, std::uint64_t seed) const {
    Values values = normal_values(shape(rows(), columns), seed);
    for (auto i = static_cast<std::size_t>(used() * columns); i < values.size(); ++i) values[i] = std::nan("");
    return values;
  }
};

// Calls body(g, row) for all rows of all groups.
template <class Body>
void for_rows(const GroupedCase& c, const Body& body) {
  std::size_t row = 0;
  for (std::size_t g = 0; g < c.sizes.size(); ++g)
    for (std::int64_t i = 0; i < c.sizes[g]; ++i) body(g, row++);
}

void run_grouped_gemm(const GroupedCase& c) {
  OpCase op(c.name("grouped_gemm"));
  const Shape b_shape = c.trans_b ? shape(c.groups(), c.n, c.width) : shape(c.groups(), c.width, c.n);
  const Handle a = op.input("a", shape(c.rows(), c.width), c.in, c.row_values(c.width, 1));
  const Handle b = op.input("b", b_shape, c.in, normal_values(b_shape, 2));
  const Handle offsets = op.input("offsets", shape(c.groups() + 1), DType::i32, c.offsets());
  const Handle out = op.output("out", shape(c.rows(), c.n), c.out, {.terms = c.width});
  op.call([=](Ops& ops, const Bound& at) {
    ops(GroupedGemmArgs{.a = at[a], .b = at[b], .out = at[out], .offsets = at[offsets], .trans_b = c.trans_b});
  });
  op.reference([=](Reference& r) {
    const auto width = static_cast<std::size_t>(c.width), n = static_cast<std::size_t>(c.n);
    for (std::size_t i = 0; i < r[out].size(); ++i) r.expect(out, i, 77, 0);
    for_rows(c, [&](std::size_t g, std::size_t row) {
      for (std::size_t j = 0; j < n; ++j) {
        double value = 0, magnitude = 0;
        for (std::size_t k = 0; k < width; ++k) {
          const std::size_t in_matrix = c.trans_b ? j * width + k : k * n + j;
          const double term = r[a][row * width + k] * r[b][g * width * n + in_matrix];
          value += term;
          magnitude += std::abs(term);
        }
        r.expect(out, row * n + j, value, magnitude);
      }
    });
  });
  op.run();
}

// The output accumulates into previous values, or overwrites NaN.
void run_weight_gradient(const GroupedCase& c, bool accumulate) {
  OpCase op(c.name("grouped_weight_gradient") + (accumulate ? "" : ", written"));
  const Shape out_shape = shape(c.groups(), c.width, c.n);
  const Handle a = op.input("a", shape(c.rows(), c.width), c.in, c.row_values(c.width, 1));
  const Handle b = op.input("b", shape(c.rows(), c.n), c.in, c.row_values(c.n, 2));
  const Handle offsets = op.input("offsets", shape(c.groups() + 1), DType::i32, c.offsets());
  const std::int64_t max_terms = *std::max_element(c.sizes.begin(), c.sizes.end());
  const Values before =
      accumulate ? normal_values(out_shape, 3) : Values(static_cast<std::size_t>(count(out_shape)), std::nan(""));
  const Handle out = op.output("out", out_shape, DType::f32, {.terms = max_terms + 1}, before);
  op.call([=](Ops& ops, const Bound& at) {
    ops(GroupedWeightGradientArgs{
        .a = at[a], .b = at[b], .out = at[out], .offsets = at[offsets], .accumulate = accumulate});
  });
  op.reference([=](Reference& r) {
    const auto m = static_cast<std::size_t>(c.width), n = static_cast<std::size_t>(c.n);
    Values sum = accumulate ? r[out] : Values(r[out].size()), magnitude(sum.size());
    for (std::size_t i = 0; i < sum.size(); ++i) magnitude[i] = std::abs(sum[i]);
    for_rows(c, [&](std::size_t g, std::size_t row) {
      for (std::size_t i = 0; i < m; ++i)
        for (std::size_t j = 0; j < n; ++j) {
          const double term = r[a][row * m + i] * r[b][row * n + j];
          sum[(g * m + i) * n + j] += term;
          magnitude[(g * m + i) * n + j] += std::abs(term);
        }
    });
    for (std::size_t i = 0; i < sum.size(); ++i) r.expect(out, i, sum[i], magnitude[i]);
  });
  op.run();
}

void run_weight_gradient(const GroupedCase& c) {
  for (const bool accumulate : {true, false}) run_weight_gradient(c, accumulate);
}

constexpr std::pair<DType, DType> types[] = {{DType::f32, DType::f32},
                                             {DType::bf16, DType::bf16},
                                             {DType::bf16, DType::f32},
                                             {DType::f16, DType::f16},
                                             {DType::f16, DType::f32}};  // dtypes of operands, result

std::vector<Sizes> kinds_of_groups() {
  return {{1}, {5}, {0}, {0, 0, 7}, {3, 0, 0, 1, 2, 0}, {16, 17, 1}, {63, 64, 65}, {0, 130, 0, 2}};
}

TEST(GroupedGemm, EveryKindOfGroup) {
  for (const auto& [in, out] : types)
    for (const Sizes& sizes : kinds_of_groups())
      for (bool trans_b : {false, true})
        for (std::int64_t unused_rows : {0, 3})
          run_grouped_gemm({.sizes = sizes,
                            .width = 29,
                            .n = 37,
                            .in = in,
                            .out = out,
                            .trans_b = trans_b,
                            .unused_rows = unused_rows});
}

TEST(GroupedGemm, EveryWidth) {
  for (std::int64_t width : {1, 8, 15, 64, 70, 400})  // the last: several blocks of depth
    for (std::int64_t n : {1, 8, 33, 64, 72, 130})
      for (bool trans_b : {false, true}) {
        run_grouped_gemm({.sizes = {2, 20, 0, 31}, .width = width, .n = n, .trans_b = trans_b});
        run_grouped_gemm({.sizes = {2, 20, 0, 31},
                          .width = width,
                          .n = n,
                          .in = DType::bf16,
                          .out = DType::bf16,
                          .trans_b = trans_b});
      }
}

TEST(GroupedGemm, ManyGroups) {
  Sizes sizes;
  for (std::int64_t g = 0; g < 300; ++g) sizes.push_back(g * g % 7);
  for (bool trans_b : {false, true}) run_grouped_gemm({.sizes = sizes, .width = 24, .n = 16, .trans_b = trans_b});
  run_weight_gradient({.sizes = sizes, .width = 24, .n = 16});
}

// More rows, columns and depth than one chunk of a CPU covers, in 16 bits, whose partial sums are kept in the
// workspace.
TEST(GroupedGemm, LargeGroups) {
  for (bool trans_b : {false, true})
    run_grouped_gemm(
        {.sizes = {2100, 0, 90}, .width = 392, .n = 24, .in = DType::bf16, .out = DType::bf16, .trans_b = trans_b});
  run_weight_gradient({.sizes = {2400, 1, 300}, .width = 40, .n = 72});
  run_weight_gradient({.sizes = {2305, 383}, .width = 16, .n = 24, .in = DType::bf16});
}

TEST(GroupedWeightGradient, EveryKindOfGroup) {
  for (DType in : float_dtypes)
    for (const Sizes& sizes : kinds_of_groups())
      for (std::int64_t unused_rows : {0, 3})
        run_weight_gradient({.sizes = sizes, .width = 29, .n = 37, .in = in, .unused_rows = unused_rows});
}

TEST(GroupedWeightGradient, EveryWidth) {
  for (std::int64_t width : {1, 8, 33, 64, 70})
    for (std::int64_t n : {1, 8, 33, 64, 130})
      for (DType in : {DType::f32, DType::bf16})
        run_weight_gradient({.sizes = {2, 20, 0, 31}, .width = width, .n = n, .in = in});
}

TEST(GroupedGemm, PlanCountsAllRows) {
  float memory[64] = {};
  const auto tensor = [&](Shape s) { return make_tensor(memory, s, DType::f32); };
  struct NoRules final : WorkspaceRules {
    const OpsTraits& traits() const override { return traits_; }
    OpsTraits traits_;
  } const rules;
  PlanOps plan(rules);
  const Tensor offsets = make_tensor(memory, shape(3), DType::i32);
  plan(GroupedGemmArgs{
      .a = tensor(shape(7, 3)), .b = tensor(shape(2, 3, 4)), .out = tensor(shape(7, 4)), .offsets = offsets});
  EXPECT_EQ(plan.flops(), 2.0 * 7 * 3 * 4);
  plan(GroupedWeightGradientArgs{
      .a = tensor(shape(7, 3)), .b = tensor(shape(7, 4)), .out = tensor(shape(2, 3, 4)), .offsets = offsets});
  EXPECT_EQ(plan.flops(), 2 * 2.0 * 7 * 3 * 4);
}

TEST(GroupedGemm, RefusesForeignOffsets) {
  if (test_device() == TestDevice::gpu) GTEST_SKIP() << "a GPU cannot refuse";
  float memory[64] = {};
  std::int32_t group_bounds[3] = {};
  const auto tensor = [&](Shape s) { return make_tensor(memory, s, DType::f32); };
  const Tensor offsets = make_tensor(group_bounds, shape(3), DType::i32);
  cpu::CpuOps ops(1, cpu::best_isa());
  for (const auto& [first, middle, last] : {std::array{-1, 0, 1}, {0, 3, 2}, {0, 1, 8}}) {
    group_bounds[0] = first, group_bounds[1] = middle, group_bounds[2] = last;
    EXPECT_THROW(ops(GroupedGemmArgs{tensor(shape(7, 3)), tensor(shape(2, 3, 4)), tensor(shape(7, 4)), offsets}),
                 Error);
    EXPECT_THROW(
        ops(GroupedWeightGradientArgs{tensor(shape(7, 3)), tensor(shape(7, 4)), tensor(shape(2, 3, 4)), offsets}),
        Error);
  }
}

TEST(GroupedGemm, RejectsWrongTensors) {
  float memory[64] = {};
  const auto tensor = [&](Shape s, DType dtype = DType::f32) { return make_tensor(memory, s, dtype); };
  const GroupedGemmArgs good{tensor(shape(7, 3)), tensor(shape(2, 3, 4)), tensor(shape(7, 4)),
                             tensor(shape(3), DType::i32)};
  EXPECT_NO_THROW(good.check());
  const auto refuses = [&](auto change, const char* words) {
    GroupedGemmArgs args = good;
    change(args);
    expect_rejected([&](Ops& ops) { ops(args); }, {"grouped_gemm", words});
  };
  refuses([&](GroupedGemmArgs& g) { g.trans_b = true; }, "b is f32[2,3,4]");
  refuses([&](GroupedGemmArgs& g) { g.b.dtype = DType::bf16; }, "b is bf16[2,3,4]");
  refuses([&](GroupedGemmArgs& g) { g.b = tensor(shape(6, 4)); }, "b has three");
  refuses([&](GroupedGemmArgs& g) { g.b = tensor(shape(0, 3, 4)); }, "one group at least");
  refuses([&](GroupedGemmArgs& g) { g.out = tensor(shape(6, 4)); }, "out is f32[6,4]");
  refuses([&](GroupedGemmArgs& g) { g.out.dtype = DType::bf16; }, "out has the dtype of a, or f32");
  refuses([&](GroupedGemmArgs& g) { g.a = tensor(shape(7, 4)).slice(1, 0, 3); }, "a is f32[7,3] (strided)");
  refuses([&](GroupedGemmArgs& g) { g.offsets = tensor(shape(2), DType::i32); }, "offsets is i32[2]");
  refuses([&](GroupedGemmArgs& g) { g.offsets = {}; }, "offsets");
}

TEST(GroupedWeightGradient, RejectsWrongTensors) {
  float memory[64] = {};
  const auto tensor = [&](Shape s, DType dtype = DType::f32) { return make_tensor(memory, s, dtype); };
  const GroupedWeightGradientArgs good{tensor(shape(7, 3)), tensor(shape(7, 4)), tensor(shape(2, 3, 4)),
                                       tensor(shape(3), DType::i32)};
  EXPECT_NO_THROW(good.check());
  const auto refuses = [&](auto change, const char* words) {
    GroupedWeightGradientArgs args = good;
    change(args);
    expect_rejected([&](Ops& ops) { ops(args); }, {"grouped_weight_gradient", words});
  };
  refuses([&](GroupedWeightGradientArgs& g) { g.b = tensor(shape(6, 4)); }, "b is f32[6,4]");
  refuses([&](GroupedWeightGradientArgs& g) { g.b.dtype = DType::f16; }, "b is f16[7,4]");
  refuses([&](GroupedWeightGradientArgs& g) { g.out = tensor(shape(2, 4, 3)); }, "out is f32[2,4,3]");
  refuses([&](GroupedWeightGradientArgs& g) { g.out.dtype = DType::bf16; }, "out is bf16[2,3,4]");
  refuses([&](GroupedWeightGradientArgs& g) { g.out = tensor(shape(3, 4)); }, "out has three");
  refuses([&](GroupedWeightGradientArgs& g) { g.out = tensor(shape(0, 3, 4)); }, "one group at least");
  refuses([&](GroupedWeightGradientArgs& g) { g.b = tensor(shape(7, 8)).slice(1, 0, 4); }, "b is f32[7,4] (strided)");
  refuses([&](GroupedWeightGradientArgs& g) { g.offsets = tensor(shape(4), DType::i32); }, "offsets is i32[4]");
}

}  // namespace
}  // namespace tera::test
