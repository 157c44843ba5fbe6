// Sums of ranks. The order is part of the definition, so every result is exact.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "tests/support/op_test.h"

#include "tera/ops/combine.h"

namespace tera::test {
namespace {

struct Setting {
  DType dtype = DType::f32;
  Reduce how = Reduce::sum;
  std::int64_t sources = 3, n = 67;
  std::int64_t in_place = -1;  // out is this source
};

// Sums one after the other, in the accumulation type.
template <class Inside>
double combined(const Setting& s, const std::vector<double>& values) {
  auto total = static_cast<Inside>(values[0]);
  for (std::size_t i = 1; i < values.size(); ++i) {
    const auto next = static_cast<Inside>(values[i]);
    if (s.how != Reduce::max)
      total += next;
    else if (std::isnan(static_cast<double>(next)) || next > total)
      total = next;
  }
  if (s.how == Reduce::mean) total /= static_cast<Inside>(values.size());
  return static_cast<double>(total);
}

double expected(const Setting& s, const std::vector<double>& values) {
  if (is_float(s.dtype)) return OpCase::stored(s.dtype, combined<float>(s, values));
  if (s.dtype == DType::f64) return combined<double>(s, values);
  return combined<std::int64_t>(s, values);
}

bool is_integer(DType dtype) { return dtype == DType::i32 || dtype == DType::i64; }

Values values_of(const Setting& s, std::int64_t source) {
  const auto seed = static_cast<std::uint64_t>(source) + 1;
  Values values = is_integer(s.dtype) ? integer_values(shape(s.n), seed, 1000) : normal_values(shape(s.n), seed);
  if (is_integer(s.dtype))
    for (double& value : values) value -= 500;
  return values;
}

OpCase combine_case(const Setting& s) {
  OpCase op(fmt::format("combine {} of {} {}[{}], in place {}", name_of(s.how), s.sources, name_of(s.dtype), s.n,
                        s.in_place));
  std::vector<Handle> sources;
  for (std::int64_t i = 0; i < s.sources; ++i) {
    const std::string name = fmt::format("source {}", i);
    sources.push_back(i == s.in_place ? op.output(name, shape(s.n), s.dtype, {.terms = 0}, values_of(s, i))
                                      : op.input(name, shape(s.n), s.dtype, values_of(s, i)));
  }
  const Handle out = s.in_place >= 0 ? sources[static_cast<std::size_t>(s.in_place)]
                                     : op.output("out", shape(s.n), s.dtype, {.terms = 0});
  op.call([=](Ops& ops, const Bound& at) {
    std::vector<Tensor> tensors;
    for (Handle h : sources) tensors.push_back(at[h]);
    ops(CombineArgs{.sources = tensors, .out = at[out], .how = s.how});
  });
  op.reference([=](Reference& r) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(s.n); ++i) {
      std::vector<double> values;
      for (Handle h : sources) values.push_back(r[h][i]);
      r.expect(out, i, expected(s, values), 0);
    }
  });
  return op;
}

TEST(CombineOp, EveryDtypeInOrder) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i32, DType::i64})
    for (Reduce how : {Reduce::sum, Reduce::mean, Reduce::max}) {
      if (!can_combine(dtype, how)) continue;
      for (std::int64_t n : {1, 15, 64, 131}) combine_case({dtype, how, 3, n}).run();
      combine_case({dtype, how, 1, 37}).run();
      combine_case({dtype, how, 8, 40000}).run();
      for (std::int64_t in_place : {0, 1, 4}) combine_case({dtype, how, 5, 83, in_place}).run();
    }
}

TEST(CombineOp, AsManySourcesAsAllowed) { combine_case({DType::bf16, Reduce::mean, 256, 21}).run(); }

// 1 vanishes beside 2^24 unless the two large numbers are added first; -0 stays -0.
TEST(CombineOp, OrderAndOddValues) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  for (Reduce how : {Reduce::sum, Reduce::max}) {
    const Values a{0x1p24, 1, nan, 1, -inf, -0.0}, b{1, 0x1p24, 1, nan, inf, -0.0}, c{-0x1p24, -0x1p24, 1, 1, 3, -0.0};
    OpCase op(fmt::format("{} of odd values", name_of(how)));
    const Handle x = op.input("x", shape(6), DType::f32, a), y = op.input("y", shape(6), DType::f32, b),
                 z = op.input("z", shape(6), DType::f32, c);
    const Handle out = op.output("out", shape(6), DType::f32, {.terms = 0});
    op.call([=](Ops& ops, const Bound& at) {
      const Tensor all[] = {at[x], at[y], at[z]};
      ops(CombineArgs{.sources = all, .out = at[out], .how = how});
    });
    op.reference([=](Reference& r) {
      const Values sums{0, 0, nan, nan, nan, -0.0}, largest{0x1p24, 0x1p24, nan, nan, inf, -0.0};
      for (std::size_t i = 0; i < 6; ++i) r.expect(out, i, how == Reduce::sum ? sums[i] : largest[i], 0);
    });
    op.run();
  }
}

TEST(CombineOp, RejectsWrongTensors) {
  double memory[64] = {};
  const Tensor x = make_tensor(memory, shape(2, 6), DType::f32), ints = make_tensor(memory, shape(2, 6), DType::i32);
  const Tensor bytes = make_tensor(memory, shape(2, 6), DType::u8);
  const auto rejected = [&](std::vector<Tensor> sources, const Tensor& out, Reduce how,
                            std::vector<std::string> words) {
    expect_rejected([&](Ops& ops) { ops(CombineArgs{.sources = sources, .out = out, .how = how}); }, words);
  };
  rejected({}, x, Reduce::sum, {"combine", "1 to 256 sources"});
  rejected(std::vector<Tensor>(257, x), x, Reduce::sum, {"combine", "1 to 256 sources"});
  rejected({x, ints}, x, Reduce::sum, {"combine: source is i32[2,6]", "f32"});
  rejected({x, x.rows(0, 1)}, x, Reduce::sum, {"combine: source is f32[1,6]", "[2,6]"});
  rejected({x}, Tensor{}, Reduce::sum, {"combine: out is none"});
  rejected({ints}, ints, Reduce::mean, {"combine", "integers have no mean"});
  rejected({bytes}, bytes, Reduce::sum, {"combine", "not u8"});
  rejected({x.slice(1, 0, 2)}, x.slice(1, 0, 2), Reduce::sum, {"combine: out is f32[2,2] (strided)"});
}

}  // namespace
}  // namespace tera::test
