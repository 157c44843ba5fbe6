#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tera/base/rng.h"
#include "tera/ops/random.h"
#include "tests/support/gpu.h"
#include "tests/support/op_test.h"

namespace tera::test {
namespace {

OpCase normal_case(DType dtype, std::int64_t elements) {
  constexpr float std = 0.25f;
  const RngKey key = rng_stream(7, "a.weight");
  OpCase op(fmt::format("normal {} {}", name_of(dtype), elements));
  const Handle out = op.output("out", shape(elements), dtype, {.terms = 1});
  op.call([=](Ops& ops, const Bound& at) { ops(NormalArgs{.out = at[out], .key = key, .std = std}); });
  op.reference([=](Reference& r) {
    for (std::int64_t i = 0; i < elements; ++i) {
      const double draw = normals_at(key, static_cast<std::uint64_t>(i / 4))[static_cast<std::size_t>(i % 4)];
      r.expect(out, static_cast<std::size_t>(i), std * draw, std::abs(std * draw));
    }
  });
  return op;
}

TEST(RandomOp, NormalIsThePartOfTheStreamThatItsKeyNames) {
  for (DType dtype : float_dtypes)
    for (std::int64_t elements : {1, 4, 7, 1000, 40003}) normal_case(dtype, elements).run();
}

// Rows and columns of a larger tensor.
struct Slice {
  std::int64_t first_row, rows, first_column, columns;
};

template <class T>
std::vector<T> drawn(const Shape& of, std::int64_t first, std::int64_t row_stride) {
  std::vector<T> values(static_cast<std::size_t>(count(of)));
  Tensor out = make_tensor(values.data(), of, dtype_of<T>());
  Tensor* const tensors[] = {&out};
  call_once(tensors, [&](Ops& ops) {
    ops(NormalArgs{.out = out, .key = {5}, .std = 0.5f, .first = first, .row_stride = row_stride});
  });
  return values;
}

template <class T>
void expect_slices_of_the_full_tensor(std::int64_t rows, std::int64_t columns, const std::vector<Slice>& slices) {
  const std::vector<T> full = drawn<T>(shape(rows, columns), 0, 0);
  EXPECT_EQ(std::memcmp(full.data(), drawn<T>(shape(rows, columns), 0, columns).data(), full.size() * sizeof(T)), 0);
  for (const Slice& s : slices) {
    SCOPED_TRACE(fmt::format("{}: rows {}+{}, columns {}+{}", name_of(dtype_of<T>()), s.first_row, s.rows,
                             s.first_column, s.columns));
    const std::vector<T> part = drawn<T>(shape(s.rows, s.columns), s.first_row * columns + s.first_column, columns);
    for (std::int64_t row = 0; row < s.rows; ++row)
      ASSERT_EQ(std::memcmp(&part[static_cast<std::size_t>(row * s.columns)],
                            &full[static_cast<std::size_t>((s.first_row + row) * columns + s.first_column)],
                            static_cast<std::size_t>(s.columns) * sizeof(T)),
                0)
          << "row " << row;
  }
}

TEST(RandomOp, SlicesHaveTheBitsOfTheWhole) {
  const std::vector<Slice> small = {{0, 3, 0, 37}, {3, 4, 0, 37}, {0, 7, 1, 5},  {2, 3, 18, 19},
                                    {0, 7, 36, 1}, {5, 1, 2, 3},  {1, 2, 7, 30}, {6, 1, 35, 2}};
  const std::vector<Slice> large = {{1, 30, 3, 1000}, {0, 31, 1003, 998}, {17, 3, 0, 2001}};  // several tasks
  const auto expect = [&]<class T>(T) {
    expect_slices_of_the_full_tensor<T>(7, 37, small);
    expect_slices_of_the_full_tensor<T>(31, 2001, large);
  };
  expect(float{});
  expect(BFloat16{});
  expect(Float16{});
}

TEST(RandomOp, SlicesOfSeveralDimsAndFarAlongTheStream) {
  constexpr std::int64_t far = (std::int64_t{1} << 34) + 3;  // the last of its counter
  const std::vector<float> rows = drawn<float>(shape(6, 5), far, 11), cube = drawn<float>(shape(2, 3, 5), far, 11);
  EXPECT_EQ(rows, cube);
  const std::vector<float> run = drawn<float>(shape(60), far, 0);
  for (std::size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i], run[i / 5 * 11 + i % 5]) << i;
  if (test_device() == TestDevice::gpu) return;  // its logarithm may round another way
  for (std::size_t i = 0; i < run.size(); ++i) {
    const std::uint64_t draw = static_cast<std::uint64_t>(far) + i;
    EXPECT_EQ(run[i], 0.5f * normals_at({5}, draw / 4)[draw % 4]) << i;
  }
}

TEST(RandomOp, RejectsIntegersAndRowsThatOverlap) {
  std::int32_t memory[4] = {};
  const Tensor out = make_tensor(memory, shape(4), DType::i32), rows = make_tensor(memory, shape(2, 2), DType::f32);
  expect_rejected([&](Ops& ops) { ops(NormalArgs{.out = out}); }, {"normal: out is i32[4]"});
  expect_rejected([&](Ops& ops) { ops(NormalArgs{.out = rows, .row_stride = 1}); }, {"normal", "row_stride"});
  expect_rejected([&](Ops& ops) { ops(NormalArgs{.out = rows, .first = -1}); }, {"normal", "first"});
}

}  // namespace
}  // namespace tera::test
