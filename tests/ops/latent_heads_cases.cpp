// Keys and values of multi-head latent attention (MLA) heads against their definition; exact but for the sum over
// heads.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/op_test.h"

#include "tera/ops/latent_heads.h"

namespace tera::test {
namespace {

struct LatentCase {
  std::int64_t rows, heads, own, rotary, values;
  std::int64_t gap = 0;  // after rows of the rotary key

  std::int64_t head() const { return own + rotary; }
  Shape kv() const { return shape(rows, heads, own + values); }
  Shape key() const { return shape(rows, heads, head()); }
  Shape shared() const { return shape(rows, rotary); }
  std::string name(const char* op, DType dtype) const {
    return fmt::format("{} [{},{}] own {} rotary {} values {} gap {} {}", op, rows, heads, own, rotary, values, gap,
                       name_of(dtype));
  }
};

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

void run_forward(const LatentCase& c, DType dtype) {
  OpCase op(c.name("latent_heads", dtype));
  const Handle kv = op.input("kv", c.kv(), dtype, normal_values(c.kv(), 1));
  const Handle rotary = op.input("rotary", c.shared(), dtype, normal_values(c.shared(), 2), {.row_gap = c.gap});
  const Handle k = op.output("k", c.key(), dtype, {.terms = 0});
  const Handle v = op.output("v", c.key(), dtype, {.terms = 0});
  op.call(
      [=](Ops& ops, const Bound& b) { ops(LatentHeadsArgs{.kv = b[kv], .rotary = b[rotary], .k = b[k], .v = b[v]}); });
  op.reference([=](Reference& r) {
    for (std::int64_t n = 0; n < c.rows * c.heads; ++n)
      for (std::int64_t i = 0; i < c.head(); ++i) {
        const std::int64_t from = n * (c.own + c.values);
        const double key = i < c.own ? r[kv][at(from + i)] : r[rotary][at(n / c.heads * c.rotary + i - c.own)];
        r.expect(k, at(n * c.head() + i), key, 0);
        r.expect(v, at(n * c.head() + i), i < c.values ? r[kv][at(from + c.own + i)] : 0, 0);
      }
  });
  op.run();
}

void run_backward(const LatentCase& c, DType dtype) {
  OpCase op(c.name("latent_heads_back", dtype));
  const Handle dk = op.input("dk", c.key(), dtype, normal_values(c.key(), 3));
  const Handle dv = op.input("dv", c.key(), dtype, normal_values(c.key(), 4));
  const Handle dkv = op.output("dkv", c.kv(), dtype, {.terms = 0});
  const Handle drotary = op.output("drotary", c.shared(), dtype, {.row_gap = c.gap, .terms = c.heads});
  op.call([=](Ops& ops, const Bound& b) {
    ops(LatentHeadsBackArgs{.dk = b[dk], .dv = b[dv], .dkv = b[dkv], .drotary = b[drotary]});
  });
  op.reference([=](Reference& r) {
    for (std::int64_t n = 0; n < c.rows * c.heads; ++n)
      for (std::int64_t i = 0; i < c.own + c.values; ++i) {
        const std::int64_t from = n * c.head();
        r.expect(dkv, at(n * (c.own + c.values) + i), i < c.own ? r[dk][at(from + i)] : r[dv][at(from + i - c.own)], 0);
      }
    for (std::int64_t row = 0; row < c.rows; ++row)
      for (std::int64_t i = 0; i < c.rotary; ++i) {
        double sum = 0, magnitude = 0;
        for (std::int64_t n = row * c.heads; n < (row + 1) * c.heads; ++n) {
          sum += r[dk][at(n * c.head() + c.own + i)];
          magnitude += std::abs(r[dk][at(n * c.head() + c.own + i)]);
        }
        r.expect(drotary, at(row * c.rotary + i), sum, magnitude);
      }
  });
  op.run();
}

const LatentCase cases[] = {
    {1, 1, 1, 2, 1},     {5, 3, 128, 64, 128},   {7, 4, 16, 8, 16, 16},    {9, 2, 6, 4, 10, 3},
    {33, 5, 7, 6, 2, 1}, {300, 2, 24, 8, 8, 32}, {3, 130, 32, 16, 32, 48}, {0, 2, 8, 8, 8},
};

TEST(LatentHeads, KeysAndValuesOfEveryHead) {
  for (const LatentCase& c : cases)
    for (const DType dtype : float_dtypes) run_forward(c, dtype);
}

TEST(LatentHeads, GradientsGoBackAndTheSharedKeyGetsTheirSum) {
  for (const LatentCase& c : cases)
    for (const DType dtype : float_dtypes) run_backward(c, dtype);
}

TEST(LatentHeads, WrongCalls) {
  float memory[64] = {};
  const auto tensor = [&](const Shape& s, DType dtype = DType::f32) { return make_tensor(memory, s, dtype); };
  const LatentHeadsArgs good{.kv = tensor(shape(2, 2, 5)),
                             .rotary = tensor(shape(2, 2)),
                             .k = tensor(shape(2, 2, 5)),
                             .v = tensor(shape(2, 2, 5))};
  const auto rejected = [&](const auto& change, const char* words) {
    LatentHeadsArgs args = good;
    change(args);
    expect_rejected([&](Ops& ops) { ops(args); }, {"latent_heads", words});
  };
  rejected([&](LatentHeadsArgs& a) { a.kv = tensor(shape(2, 10)); }, "three dims");
  rejected([&](LatentHeadsArgs& a) { a.v = tensor(shape(2, 2, 4)); }, "v is");
  rejected([&](LatentHeadsArgs& a) { a.kv.dtype = DType::bf16; }, "kv is");
  rejected([&](LatentHeadsArgs& a) { a.rotary = tensor(shape(3, 2)); }, "same rows and heads");
  rejected([&](LatentHeadsArgs& a) { a.rotary = tensor(shape(2, 6)); }, "keys fit into kv");
  rejected([&](LatentHeadsArgs& a) { a.kv = tensor(shape(2, 2, 9)); }, "values into v");
  expect_rejected(
      [&](Ops& ops) {
        ops(LatentHeadsBackArgs{.dk = good.k, .dv = good.v, .dkv = good.kv, .drotary = tensor(shape(2, 2, 1))});
      },
      {"latent_heads_back", "rotary has two"});
}

}  // namespace
}  // namespace tera::test
