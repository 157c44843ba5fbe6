// Rotary embedding against its definition in double.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tera/backend/cpu/cpu_ops.h"
#include "tera/base/error.h"
#include "tera/ops/rope.h"
#include "tests/support/gpu.h"
#include "tests/support/op_test.h"

namespace tera::test {
namespace {

struct RopeCase {
  std::int64_t T, N, D, R;
  std::int64_t gap = 0, first = 0;
};

void run_rope(const RopeCase& c, DType dtype, bool interleaved, bool inverse) {
  constexpr std::int64_t P = 50;
  OpCase op(fmt::format("rope T={} N={} D={} R={} gap={} first={} {} interleaved={} inverse={}", c.T, c.N, c.D, c.R,
                        c.gap, c.first, name_of(dtype), interleaved, inverse));
  const Shape x_shape = shape(c.T, c.N, c.D), table_shape = shape(P, c.R);
  const Values angles = normal_values(table_shape, 2, 3);
  Values cosines = angles, sines = angles;
  for (double& angle : cosines) angle = std::cos(angle);
  for (double& angle : sines) angle = std::sin(angle);
  const Handle positions = op.input("positions", shape(c.T), DType::i32, integer_values(shape(c.T), 3, P));
  const Handle cos = op.input("cos", table_shape, DType::f32, cosines);
  const Handle sin = op.input("sin", table_shape, DType::f32, sines);
  const Handle x = op.output("x", x_shape, dtype, {.row_gap = c.gap, .terms = 2}, normal_values(x_shape, 1));
  op.call([&](Ops& ops, const Bound& at) {
    ops(RopeArgs{.x = at[x],
                 .positions = at[positions],
                 .cos = at[cos],
                 .sin = at[sin],
                 .interleaved = interleaved,
                 .inverse = inverse,
                 .first = c.first});
  });
  op.reference([&](Reference& r) {
    for (std::int64_t i = 0; i < c.T * c.N * c.D; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const std::int64_t channel = i % c.D - c.first;
      if (channel < 0 || channel >= 2 * c.R) {
        r.expect(x, at, r[x][at], 0);
        continue;
      }
      const std::int64_t pair = interleaved ? channel / 2 : channel % c.R;
      const bool second = interleaved ? channel % 2 == 1 : channel >= c.R;
      const std::int64_t step = interleaved ? 1 : c.R;
      const double other = r[x][static_cast<std::size_t>(second ? i - step : i + step)];
      const auto row = static_cast<std::size_t>(i / (c.N * c.D));
      const auto entry = static_cast<std::size_t>(static_cast<std::int64_t>(r[positions][row]) * c.R + pair);
      const double rotation = (second ? 1 : -1) * (inverse ? -1 : 1) * r[sin][entry];
      const double kept = r[x][at] * r[cos][entry], rotated = other * rotation;
      r.expect(x, at, kept + rotated, std::abs(kept) + std::abs(rotated));
    }
  });
  op.run();
}

TEST(Rope, RotatesPairs) {
  const RopeCase cases[] = {{1, 1, 2, 1},        {5, 3, 64, 32, 17},  {40, 2, 128, 64},
                            {33, 2, 80, 40, 3},  {7, 1, 96, 24},      {9, 2, 31, 5},
                            {4, 2, 34, 17},      {70, 4, 32, 16, 64}, {6, 3, 192, 32, 0, 128},
                            {5, 2, 13, 2, 3, 7}, {3, 2, 24, 4, 8, 8}};
  for (const auto& c : cases)
    for (DType dtype : float_dtypes)
      for (bool interleaved : {false, true})
        for (bool inverse : {false, true}) run_rope(c, dtype, interleaved, inverse);
}

TEST(Rope, PositionsOutsideTheTablesAreRefused) {
  if (test_device() == TestDevice::gpu) GTEST_SKIP() << "a GPU cannot refuse";
  float x[4] = {}, table[6] = {};
  for (std::int32_t position : {-1, 3}) {
    cpu::CpuOps ops(1, cpu::best_isa());
    const Tensor angles = make_tensor(table, shape(3, 2), DType::f32);
    EXPECT_THROW(ops(RopeArgs{.x = make_tensor(x, shape(1, 1, 4), DType::f32),
                              .positions = make_tensor(&position, shape(1), DType::i32),
                              .cos = angles,
                              .sin = angles}),
                 Error);
  }
}

}  // namespace
}  // namespace tera::test
