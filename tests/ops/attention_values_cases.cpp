// Attention whose values have fewer channels than its queries and keys (MLA): the result of padding values with zeros,
// without the padding.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/ops/attention_reference.h"
#include "tests/support/op_test.h"

#include "tera/ops/attention.h"

namespace tera::test {
namespace {

struct ValuesCase {
  std::int64_t queries = 0, keys = 0, N = 1, G = 1, D = 8, U = 8;
  Mask mask = Mask::causal;
  std::int64_t batch = 1;
  DType dtype = DType::f32;
  std::int64_t gap = 0;  // free elements after each row
  std::string name() const {
    return fmt::format("{} queries, {} keys, N={} G={} D={} {} of values {} batch={} {}", queries, keys, N, G, D, U,
                       name_of(mask), batch, name_of(dtype));
  }
};

// The last three are of sizes that cuDNN takes.
std::vector<ValuesCase> cases() {
  using enum Mask;
  std::vector<ValuesCase> all{{.queries = 7, .keys = 7, .N = 2, .G = 1, .D = 5, .U = 2},
                              {.queries = 33, .keys = 33, .N = 4, .G = 2, .D = 32, .U = 31, .gap = 3},
                              {.queries = 65, .keys = 90, .N = 2, .G = 2, .D = 40, .U = 24, .mask = full},
                              {.queries = 300, .keys = 300, .N = 2, .G = 1, .D = 24, .U = 16},
                              {.queries = 90, .keys = 30, .N = 1, .G = 1, .D = 16, .U = 1},
                              {.queries = 64, .keys = 64, .N = 3, .G = 3, .D = 16, .U = 16},
                              {.queries = 128, .keys = 128, .N = 2, .G = 2, .D = 192, .U = 128, .batch = 2},
                              {.queries = 200, .keys = 200, .N = 2, .G = 1, .D = 96, .U = 64, .gap = 32},
                              {.queries = 64, .keys = 128, .N = 2, .G = 2, .D = 64, .U = 32, .mask = full}};
  const std::size_t count = all.size();
  for (const DType dtype : {DType::bf16, DType::f16})
    for (std::size_t i = 0; i < count; ++i) {
      all.push_back(all[i]);
      all.back().dtype = dtype;
    }
  return all;
}

AttentionProblem problem_of(const ValuesCase& c) {
  AttentionProblem p{.N = c.N, .G = c.G, .D = c.D, .mask = c.mask};
  p.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(c.D)));
  for (std::int64_t i = 0; i < c.batch; ++i)
    p.sequences.push_back({i * c.queries, (i + 1) * c.queries, i * c.keys, (i + 1) * c.keys});
  return p;
}

AttentionShape shape_of(const ValuesCase& c, const AttentionProblem& p) {
  return {.batch = c.batch, .mask = c.mask, .scale = static_cast<float>(p.scale), .values = c.U};
}

// The channels of each head after those that count are zeros.
Values narrowed(const ValuesCase& c, Values values) {
  for (std::size_t i = 0; i < values.size(); ++i)
    if (static_cast<std::int64_t>(i) % c.D >= c.U) values[i] = 0;
  return values;
}

void expect_all(Reference& r, Handle handle, const Measured& measured) {
  for (std::size_t i = 0; i < measured.value.size(); ++i) r.expect(handle, i, measured.value[i], measured.magnitude[i]);
}

std::int64_t terms_of(const ValuesCase& c) { return c.D + c.batch * std::max(c.queries, c.keys); }

void run_forward(const ValuesCase& c) {
  const AttentionProblem p = problem_of(c);
  OpCase op("forward: " + c.name());
  const Shape q_shape = shape(p.q_rows(), c.N, c.D), k_shape = shape(p.k_rows(), c.G, c.D);
  const Handle q = op.input("q", q_shape, c.dtype, normal_values(q_shape, 1), {.row_gap = c.gap});
  const Handle k = op.input("k", k_shape, c.dtype, normal_values(k_shape, 2), {.row_gap = 2 * c.gap});
  const Handle v = op.input("v", k_shape, c.dtype, narrowed(c, normal_values(k_shape, 3)), {.row_gap = c.gap});
  const Handle out = op.output("out", q_shape, c.dtype, {.row_gap = c.gap, .terms = terms_of(c)},
                               Values(static_cast<std::size_t>(count(q_shape))));
  const Handle lse = op.output("lse", shape(c.N, p.q_rows()), DType::f32, {.terms = terms_of(c)});
  op.call([&](Ops& ops, const Bound& at) {
    ops(AttentionArgs{.q = at[q], .k = at[k], .v = at[v], .out = at[out], .lse = at[lse], .shape = shape_of(c, p)});
  });
  op.reference([&](Reference& r) {
    const AttentionResult result = attention_reference(p, r[q], r[k], r[v]);
    expect_all(r, out, result.out);
    expect_all(r, lse, result.lse);
  });
  op.run();
}

void run_backward(const ValuesCase& c) {
  const AttentionProblem p = problem_of(c);
  OpCase op("backward: " + c.name());
  const Shape q_shape = shape(p.q_rows(), c.N, c.D), k_shape = shape(p.k_rows(), c.G, c.D);
  const auto stored = [&](Values values) {
    for (double& value : values) value = OpCase::stored(c.dtype, value);
    return values;
  };
  const Values q0 = stored(normal_values(q_shape, 1)), k0 = stored(normal_values(k_shape, 2));
  const Values v0 = narrowed(c, stored(normal_values(k_shape, 3)));
  const AttentionResult forward = attention_reference(p, q0, k0, v0);
  const Handle q = op.input("q", q_shape, c.dtype, q0, {.row_gap = c.gap});
  const Handle k = op.input("k", k_shape, c.dtype, k0, {.row_gap = c.gap});
  const Handle v = op.input("v", k_shape, c.dtype, v0, {.row_gap = 2 * c.gap});
  const Handle out = op.input("out", q_shape, c.dtype, forward.out.value, {.row_gap = c.gap});
  const Handle dout = op.input("dout", q_shape, c.dtype, narrowed(c, normal_values(q_shape, 4)), {.row_gap = c.gap});
  const Handle lse = op.input("lse", shape(c.N, p.q_rows()), DType::f32, forward.lse.value);
  const OpCase::Extra extra{.row_gap = c.gap, .terms = terms_of(c)};
  const Handle dq = op.output("dq", q_shape, c.dtype, extra), dk = op.output("dk", k_shape, c.dtype, extra);
  const Handle dv = op.output("dv", k_shape, c.dtype, extra, Values(static_cast<std::size_t>(count(k_shape))));
  op.call([&](Ops& ops, const Bound& at) {
    ops(AttentionBackArgs{.q = at[q],
                          .k = at[k],
                          .v = at[v],
                          .out = at[out],
                          .dout = at[dout],
                          .lse = at[lse],
                          .dq = at[dq],
                          .dk = at[dk],
                          .dv = at[dv],
                          .shape = shape_of(c, p)});
  });
  op.reference([&](Reference& r) {
    const auto result = attention_back_reference(p, {r[q], r[k], r[v], r[out], r[dout], r[lse]});
    expect_all(r, dq, result.dq);
    expect_all(r, dk, result.dk);
    expect_all(r, dv, result.dv);
  });
  op.run();
}

TEST(AttentionValues, ForwardFollowsTheDefinition) {
  for (const ValuesCase& c : cases()) run_forward(c);
}
TEST(AttentionValues, BackwardFollowsTheDefinition) {
  for (const ValuesCase& c : cases()) run_backward(c);
}

}  // namespace
}  // namespace tera::test
