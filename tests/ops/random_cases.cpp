#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tera/base/rng.h"
#include "tests/support/op_test.h"

namespace tera::test {
namespace {

OpCase normal_case(DType dtype, std::int64_t elements) {
  constexpr float std = 0.25f;
  const RngKey key = rng_stream(7, "a.weight");
  OpCase op(fmt::format("normal {} {}", name_of(dtype), elements));
  const Handle out = op.output("out", shape(elements), dtype, {.terms = 1});
  op.call([=](Ops& ops, const Bound& at) { ops.normal({.out = at[out], .key = key, .std = std}); });
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
    for (std::int64_t elements : {1, 4, 7, 1000, 40003}) normal_case(dtype, elements).play();
}

TEST(RandomOp, RejectsIntegers) {
  std::int32_t memory[4] = {};
  const Tensor out = make_tensor(memory, shape(4), DType::i32);
  expect_rejected([&](Ops& ops) { ops.normal({.out = out}); }, {"normal: out is i32[4]"});
}

}  // namespace
}  // namespace tera::test
