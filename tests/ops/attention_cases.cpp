// Attention against its definition in double: masks, lengths, head sizes, groups, documents, dropout and storage types.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>

#include "tests/ops/attention_reference.h"
#include "tests/support/op_test.h"

#include "tera/ops/attention.h"

namespace tera::test {
namespace {

struct AttentionCase {
  std::int64_t queries = 0, keys = 0;  // rows of each sequence
  std::int64_t N = 1, G = 1, D = 8;
  Mask mask = Mask::causal;
  std::int64_t window = 0, batch = 1;
  std::vector<std::int32_t> q_offsets = {}, k_offsets = {};  // instead of queries, keys, batch
  std::vector<std::int32_t> q_positions = {}, k_positions = {};
  float dropout = 0;
  DType dtype = DType::f32;
  std::int64_t gap = 0;  // free elements after each row
  double spread = 1;     // scale of q and k: large makes sharp probabilities
  std::string name() const {
    return fmt::format(
        "{} queries, {} keys, N={} G={} D={} {} window={} batch={} documents={} positions={} dropout={} {} gap={}",
        queries, keys, N, G, D, name_of(mask), window, batch, q_offsets.size(), q_positions.size(), dropout,
        name_of(dtype), gap);
  }
};

std::vector<AttentionCase> shape_cases() {
  using enum Mask;
  return {
      {.queries = 1, .keys = 1},
      {.queries = 2, .keys = 3, .D = 1},
      {.queries = 7, .keys = 7, .N = 2, .G = 1, .D = 5},
      {.queries = 33, .keys = 33, .N = 4, .G = 2, .D = 32, .gap = 3},
      {.queries = 64, .keys = 64, .N = 2, .G = 2, .D = 64, .batch = 3, .gap = 128},
      {.queries = 65, .keys = 65, .N = 3, .G = 1, .D = 33, .mask = full},
      {.queries = 100, .keys = 100, .N = 2, .G = 1, .D = 80},
      {.queries = 130, .keys = 130, .N = 2, .G = 1, .D = 96, .gap = 32},
      {.queries = 129, .keys = 200, .N = 2, .G = 2, .D = 128},
      {.queries = 200, .keys = 129, .N = 2, .G = 1, .D = 128, .mask = full},
      {.queries = 257, .keys = 257, .N = 2, .G = 1, .D = 64},
      {.queries = 300, .keys = 300, .N = 1, .G = 1, .D = 16, .batch = 2},
      {.queries = 513, .keys = 513, .N = 2, .G = 2, .D = 7},
      {.queries = 600, .keys = 600, .N = 4, .G = 2, .D = 8, .mask = full},
      {.queries = 30, .keys = 90, .N = 2, .G = 2, .D = 16},
      {.queries = 90, .keys = 30, .N = 2, .G = 1, .D = 16},             // the first 60 queries see no key
      {.queries = 700, .keys = 300, .N = 2, .G = 1, .D = 8, .gap = 5},  // some tasks have no visible key at all
      {.queries = 300, .keys = 700, .N = 1, .G = 1, .D = 8},
      {.queries = 1, .keys = 500, .N = 4, .G = 2, .D = 64},
      {.queries = 40, .keys = 40, .N = 1, .G = 1, .D = 64, .spread = 8},
      {.queries = 40, .keys = 40, .N = 1, .G = 1, .D = 64, .mask = full, .spread = 40},
  };
}

std::vector<AttentionCase> window_cases() {
  using enum Mask;
  return {
      {.queries = 50, .keys = 50, .N = 2, .G = 2, .D = 16, .mask = causal, .window = 1},
      {.queries = 50, .keys = 50, .N = 2, .G = 1, .D = 16, .mask = causal, .window = 3},
      {.queries = 300, .keys = 300, .N = 1, .G = 1, .D = 16, .mask = causal, .window = 64},
      {.queries = 600, .keys = 600, .N = 1, .G = 1, .D = 8, .mask = causal, .window = 70},
      {.queries = 600, .keys = 600, .N = 2, .G = 1, .D = 8, .mask = causal, .window = 300},
      {.queries = 100, .keys = 300, .N = 1, .G = 1, .D = 16, .mask = causal, .window = 20},
      {.queries = 300, .keys = 100, .N = 1, .G = 1, .D = 16, .mask = causal, .window = 30},
      {.queries = 40, .keys = 40, .N = 1, .G = 1, .D = 16, .mask = causal, .window = 1000},
      {.queries = 260, .keys = 900, .N = 1, .G = 1, .D = 8, .mask = causal, .window = 128},
  };
}

std::vector<AttentionCase> document_cases() {
  using enum Mask;
  const std::vector<std::int32_t> one = {0, 70}, some = {0, 5, 5, 40, 41, 105, 106}, few = {0, 3, 10, 10, 90, 100, 130};
  const std::vector<std::int32_t> long_ones = {0, 300, 310, 700};
  return {
      {.N = 2, .G = 1, .D = 16, .q_offsets = one, .k_offsets = one},
      {.N = 2, .G = 2, .D = 16, .q_offsets = some, .k_offsets = some, .gap = 7},
      {.N = 2, .G = 1, .D = 16, .mask = full, .q_offsets = some, .k_offsets = few},  // a document without keys, one
                                                                                     // without queries
      {.N = 2, .G = 1, .D = 16, .mask = causal, .q_offsets = few, .k_offsets = some},
      {.N = 1, .G = 1, .D = 16, .mask = causal, .window = 9, .q_offsets = some, .k_offsets = some},
      {.N = 2, .G = 1, .D = 8, .mask = causal, .q_offsets = long_ones, .k_offsets = long_ones},
  };
}

std::vector<AttentionCase> dropout_cases() {
  using enum Mask;
  return {
      {.queries = 70, .keys = 70, .N = 4, .G = 2, .D = 16, .dropout = 0.1f},
      {.queries = 300, .keys = 300, .N = 2, .G = 1, .D = 8, .dropout = 0.5f},
      {.queries = 90, .keys = 40, .N = 2, .G = 2, .D = 33, .mask = full, .dropout = 0.3f},
      {.queries = 100, .keys = 100, .N = 1, .G = 1, .D = 8, .mask = causal, .window = 17, .dropout = 0.25f},
  };
}

// Runs of neighbours, each from `first` on.
std::vector<std::int32_t> runs(std::initializer_list<std::pair<std::int32_t, int>> first_and_count) {
  std::vector<std::int32_t> positions;
  for (const auto& [first, count] : first_and_count)
    for (int i = 0; i < count; ++i) positions.push_back(first + i);
  return positions;
}

// Rows of the zigzag split: from the front and the back of sequences, as context-parallel ranks have them.
std::vector<AttentionCase> position_cases() {
  const auto front_and_back = runs({{100, 50}, {350, 50}}), middle = runs({{150, 50}, {300, 50}});
  const auto ends = runs({{0, 50}, {450, 50}}), all = runs({{0, 500}});
  const auto two = runs({{8, 8}, {40, 8}, {0, 8}, {48, 8}}), other_two = runs({{0, 8}, {48, 8}, {16, 8}, {24, 8}});
  return {
      {.queries = 1, .keys = 1, .q_positions = {3}, .k_positions = {3}},
      {.queries = 1, .keys = 2, .q_positions = {3}, .k_positions = {4, 5}},  // sees nothing
      {.queries = 100,
       .keys = 100,
       .N = 4,
       .G = 2,
       .D = 16,
       .q_positions = front_and_back,
       .k_positions = front_and_back},
      {.queries = 100,
       .keys = 100,
       .N = 2,
       .G = 1,
       .D = 64,
       .q_positions = front_and_back,
       .k_positions = ends,
       .gap = 8},
      {.queries = 100, .keys = 100, .N = 2, .G = 1, .D = 33, .q_positions = front_and_back, .k_positions = middle},
      {.queries = 100, .keys = 500, .N = 2, .G = 2, .D = 16, .q_positions = front_and_back, .k_positions = all},
      {.queries = 500, .keys = 100, .N = 1, .G = 1, .D = 128, .q_positions = all, .k_positions = middle},
      {.queries = 100,
       .keys = 500,
       .N = 2,
       .G = 1,
       .D = 16,
       .window = 70,
       .q_positions = front_and_back,
       .k_positions = all},
      {.queries = 100,
       .keys = 100,
       .N = 2,
       .G = 1,
       .D = 16,
       .window = 90,
       .q_positions = front_and_back,
       .k_positions = middle},
      {.queries = 100,
       .keys = 100,
       .N = 1,
       .G = 1,
       .D = 16,
       .window = 20,
       .q_positions = front_and_back,
       .k_positions = ends},
      {.queries = 16, .keys = 16, .N = 2, .G = 1, .D = 8, .batch = 2, .q_positions = two, .k_positions = other_two},
      {.N = 2,
       .G = 1,
       .D = 16,
       .q_offsets = {0, 3, 3, 8, 9},
       .k_offsets = {0, 2, 3, 9, 9},
       .q_positions = {0, 4, 5, 1, 2, 6, 7, 9, 0},
       .k_positions = {2, 3, 0, 0, 3, 4, 5, 8, 10}},
      {.queries = 100,
       .keys = 100,
       .N = 2,
       .G = 1,
       .D = 16,
       .q_positions = front_and_back,
       .k_positions = middle,
       .dropout = 0.3f},
  };
}

// Every case in the 16-bit types too, where sums of several rounds are kept apart from the output.
std::vector<AttentionCase> in_every_dtype(std::vector<AttentionCase> cases) {
  const std::size_t count = cases.size();
  for (DType dtype : {DType::bf16, DType::f16})
    for (std::size_t i = 0; i < count; ++i) {
      cases.push_back(cases[i]);
      cases.back().dtype = dtype;
    }
  return cases;
}

AttentionProblem problem_of(const AttentionCase& c) {
  AttentionProblem p{.N = c.N, .G = c.G, .D = c.D, .mask = c.mask, .window = c.window};
  p.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(c.D)));
  p.dropout = c.dropout;
  p.key = {0x123456789abcdefULL};
  for (std::int64_t i = 0; i < c.batch && c.q_offsets.empty(); ++i)
    p.sequences.push_back({i * c.queries, (i + 1) * c.queries, i * c.keys, (i + 1) * c.keys});
  for (std::size_t i = 0; i + 1 < c.q_offsets.size(); ++i)
    p.sequences.push_back({c.q_offsets[i], c.q_offsets[i + 1], c.k_offsets[i], c.k_offsets[i + 1]});
  p.q_positions = c.q_positions;
  p.k_positions = c.k_positions;
  // Ids that do not start at a multiple of four, with a jump among them.
  for (std::int64_t i = 0; i < p.q_rows(); ++i) p.q_ids.push_back(1'000'003 + i);
  for (std::int64_t i = 0; i < p.k_rows(); ++i)
    p.k_ids.push_back((std::int64_t{1} << 33) + 2 + i + (i > 37 ? 1001 : 0));
  return p;
}

Values numbers(const auto& integers) { return Values(integers.begin(), integers.end()); }

// Adds the tensors of AttentionShape to a case.
struct ShapeHandles {
  Handle q_offsets, k_offsets, q_ids, k_ids, q_positions, k_positions;
  ShapeHandles(OpCase& op, const AttentionCase& c, const AttentionProblem& p) {
    const auto ints = [](const auto& values) { return shape(static_cast<std::int64_t>(values.size())); };
    if (!c.q_offsets.empty()) q_offsets = op.input("q_offsets", ints(c.q_offsets), DType::i32, numbers(c.q_offsets));
    if (!c.q_offsets.empty()) k_offsets = op.input("k_offsets", ints(c.k_offsets), DType::i32, numbers(c.k_offsets));
    if (!c.q_positions.empty()) {
      q_positions = op.input("q_positions", ints(c.q_positions), DType::i32, numbers(c.q_positions));
      k_positions = op.input("k_positions", ints(c.k_positions), DType::i32, numbers(c.k_positions));
    }
    q_ids = op.input("q_rows", ints(p.q_ids), DType::i64, numbers(p.q_ids));
    k_ids = op.input("k_rows", ints(p.k_ids), DType::i64, numbers(p.k_ids));
  }
  AttentionShape at(const Bound& bound, const AttentionCase& c, const AttentionProblem& p) const {
    AttentionShape s{.batch = c.batch, .mask = c.mask, .window = c.window, .scale = static_cast<float>(p.scale)};
    s.dropout = c.dropout;
    s.key = p.key;
    if (!c.q_offsets.empty()) s.q_offsets = bound[q_offsets];
    if (!c.q_offsets.empty()) s.k_offsets = bound[k_offsets];
    if (!c.q_positions.empty()) {
      s.q_positions = bound[q_positions];
      s.k_positions = bound[k_positions];
    }
    if (c.dropout > 0) s.q_rows = bound[q_ids];
    if (c.dropout > 0) s.k_rows = bound[k_ids];
    return s;
  }
};

void expect_all(Reference& r, Handle handle, const Measured& measured) {
  for (std::size_t i = 0; i < measured.value.size(); ++i) r.expect(handle, i, measured.value[i], measured.magnitude[i]);
}

// Outputs of [0, ..] sequences aside, terms: D products per score, then as many terms as rows.
std::int64_t terms_of(const AttentionProblem& p) { return p.D + std::max(p.q_rows(), p.k_rows()); }

void run_forward(const AttentionCase& c) {
  const AttentionProblem p = problem_of(c);
  OpCase op("forward: " + c.name());
  const Shape q_shape = shape(p.q_rows(), c.N, c.D), k_shape = shape(p.k_rows(), c.G, c.D);
  const Handle q = op.input("q", q_shape, c.dtype, normal_values(q_shape, 1, c.spread), {.row_gap = c.gap});
  const Handle k = op.input("k", k_shape, c.dtype, normal_values(k_shape, 2, c.spread), {.row_gap = 2 * c.gap});
  const Handle v = op.input("v", k_shape, c.dtype, normal_values(k_shape, 3), {.row_gap = 3 * c.gap});
  const ShapeHandles handles(op, c, p);
  const Handle out = op.output("out", q_shape, c.dtype, {.row_gap = c.gap, .terms = terms_of(p)});
  const Handle lse = op.output("lse", shape(c.N, p.q_rows()), DType::f32, {.terms = terms_of(p)});
  op.call([&](Ops& ops, const Bound& at) {
    ops(AttentionArgs{
        .q = at[q], .k = at[k], .v = at[v], .out = at[out], .lse = at[lse], .shape = handles.at(at, c, p)});
  });
  op.reference([&](Reference& r) {
    const AttentionResult result = attention_reference(p, r[q], r[k], r[v]);
    expect_all(r, out, result.out);
    expect_all(r, lse, result.lse);
  });
  op.run();
}

void run_backward(const AttentionCase& c) {
  const AttentionProblem p = problem_of(c);
  OpCase op("backward: " + c.name());
  const Shape q_shape = shape(p.q_rows(), c.N, c.D), k_shape = shape(p.k_rows(), c.G, c.D);
  const Shape lse_shape = shape(c.N, p.q_rows());
  const auto stored = [&](Values values) {
    for (double& value : values) value = OpCase::stored(c.dtype, value);
    return values;
  };
  const Values q0 = stored(normal_values(q_shape, 1, c.spread)), k0 = stored(normal_values(k_shape, 2, c.spread));
  const Values v0 = stored(normal_values(k_shape, 3));
  const AttentionResult forward = attention_reference(p, q0, k0, v0);
  const Handle q = op.input("q", q_shape, c.dtype, q0, {.row_gap = c.gap});
  const Handle k = op.input("k", k_shape, c.dtype, k0, {.row_gap = 2 * c.gap});
  const Handle v = op.input("v", k_shape, c.dtype, v0, {.row_gap = c.gap});
  const Handle out = op.input("out", q_shape, c.dtype, forward.out.value, {.row_gap = 3 * c.gap});
  const Handle dout = op.input("dout", q_shape, c.dtype, normal_values(q_shape, 4), {.row_gap = c.gap});
  const Handle lse = op.input("lse", lse_shape, DType::f32, forward.lse.value);
  const ShapeHandles handles(op, c, p);
  const Handle dq = op.output("dq", q_shape, c.dtype, {.row_gap = c.gap, .terms = terms_of(p)});
  const Handle dk = op.output("dk", k_shape, c.dtype, {.row_gap = c.gap, .terms = terms_of(p)});
  const Handle dv = op.output("dv", k_shape, c.dtype, {.row_gap = 2 * c.gap, .terms = terms_of(p)});
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
                          .shape = handles.at(at, c, p)});
  });
  op.reference([&](Reference& r) {
    const auto result = attention_back_reference(p, {r[q], r[k], r[v], r[out], r[dout], r[lse]});
    expect_all(r, dq, result.dq);
    expect_all(r, dk, result.dk);
    expect_all(r, dv, result.dv);
  });
  op.run();
}

TEST(Attention, ForwardFollowsTheDefinition) {
  for (const auto& c : in_every_dtype(shape_cases())) run_forward(c);
}
TEST(Attention, ForwardWithWindows) {
  for (const auto& c : window_cases()) run_forward(c);
}
TEST(Attention, ForwardWithDocuments) {
  for (const auto& c : in_every_dtype(document_cases())) run_forward(c);
}
TEST(Attention, ForwardWithPositions) {
  for (const auto& c : in_every_dtype(position_cases())) run_forward(c);
}
TEST(Attention, ForwardWithDropout) {
  for (const auto& c : in_every_dtype(dropout_cases())) run_forward(c);
}
// Several test cases, which slow tools can run in parallel.
class AttentionShapes : public testing::TestWithParam<std::size_t> {
 protected:
  static constexpr std::size_t parts = 6;
};
TEST_P(AttentionShapes, BackwardFollowsTheDefinition) {
  const auto cases = in_every_dtype(shape_cases());
  for (std::size_t i = GetParam(); i < cases.size(); i += parts) run_backward(cases[i]);
}
INSTANTIATE_TEST_SUITE_P(Parts, AttentionShapes, testing::Range<std::size_t>(0, 6));
TEST(Attention, BackwardWithWindows) {
  for (const auto& c : in_every_dtype(window_cases())) run_backward(c);
}
TEST(Attention, BackwardWithDocuments) {
  for (const auto& c : in_every_dtype(document_cases())) run_backward(c);
}
TEST(Attention, BackwardWithPositions) {
  for (const auto& c : in_every_dtype(position_cases())) run_backward(c);
}
TEST(Attention, BackwardWithDropout) {
  for (const auto& c : in_every_dtype(dropout_cases())) run_backward(c);
}

struct MergeCase {
  std::int64_t rows = 0, N = 1, D = 8;
  DType dtype = DType::f32;
  std::int64_t gap = 0;
};

// Merges two softmaxes, each over keys of its own, into that over all of them. lse of the first rows: -inf in one, the
// other, both; then far apart.
void run_merge(const MergeCase& c) {
  OpCase op(fmt::format("merge: {} rows, N={} D={} {} gap={}", c.rows, c.N, c.D, name_of(c.dtype), c.gap));
  const Shape rows = shape(c.rows, c.N, c.D), lse_shape = shape(c.N, c.rows);
  const double none = -std::numeric_limits<double>::infinity();
  Values a = normal_values(lse_shape, 1, 3), b = normal_values(lse_shape, 2, 3), before = normal_values(rows, 3);
  const auto set = [&](std::size_t row, double first, double second) {
    for (std::size_t head = 0; head < static_cast<std::size_t>(c.N) && row < static_cast<std::size_t>(c.rows); ++head) {
      a[head * static_cast<std::size_t>(c.rows) + row] = first;
      b[head * static_cast<std::size_t>(c.rows) + row] = second;
    }
  };
  set(0, none, 1);
  set(1, 1, none);
  set(2, none, none);
  set(3, -200, 300);
  set(4, 80, -90);
  const Handle part = op.input("part", rows, c.dtype, normal_values(rows, 4), {.row_gap = c.gap});
  const Handle part_lse = op.input("part_lse", lse_shape, DType::f32, b, {.row_gap = c.gap});
  const Handle out = op.output("out", rows, DType::f32, {.row_gap = 2 * c.gap, .terms = 4}, before);
  const Handle lse = op.output("lse", lse_shape, DType::f32, {.row_gap = 3 * c.gap, .terms = 4}, a);
  op.call([=](Ops& ops, const Bound& at) {
    ops(MergeAttentionArgs{.part = at[part], .part_lse = at[part_lse], .out = at[out], .lse = at[lse]});
  });
  op.reference([=](Reference& r) {
    for (std::int64_t row = 0; row < c.rows; ++row)
      for (std::int64_t head = 0; head < c.N; ++head) {
        const auto at = static_cast<std::size_t>(head * c.rows + row);
        const double x = r[lse][at], y = r[part_lse][at], largest = std::max(x, y);
        const double all = y == none ? x : largest + std::log(std::exp(x - largest) + std::exp(y - largest));
        const double first = y == none ? 1 : std::exp(x - all), second = y == none ? 0 : std::exp(y - all);
        r.expect(lse, at, all, std::abs(all) + 1);
        for (std::int64_t d = 0; d < c.D; ++d) {
          const auto i = static_cast<std::size_t>((row * c.N + head) * c.D + d);
          const double p = r[out][i] * first, q = r[part][i] * second;
          r.expect(out, i, p + q, (std::abs(p) + std::abs(q)) * (1 + std::abs(all)));
        }
      }
  });
  op.run();
}

TEST(Attention, PartsAreMerged) {
  for (const DType dtype : float_dtypes)
    for (const MergeCase& c : std::vector<MergeCase>{{.rows = 1, .D = 1},
                                                     {.rows = 5, .N = 2, .D = 7},
                                                     {.rows = 37, .N = 3, .D = 33, .gap = 5},
                                                     {.rows = 300, .N = 4, .D = 64, .gap = 8},
                                                     {.rows = 129, .N = 2, .D = 128}}) {
      MergeCase with = c;
      with.dtype = dtype;
      run_merge(with);
    }
}

TEST(Attention, WrongPositionsAndPartsAreRejected) {
  std::vector<float> memory(1000);
  const auto tensor = [&](const Shape& shape, DType dtype = DType::f32) {
    return make_tensor(memory.data(), shape, dtype);
  };
  const Tensor q = tensor(shape(4, 2, 8)), k = tensor(shape(6, 1, 8)), lse = tensor(shape(2, 4));
  const auto attend = [&](const AttentionShape& s) {
    return [=](Ops& ops) { ops(AttentionArgs{.q = q, .k = k, .v = k, .out = q, .lse = lse, .shape = s}); };
  };
  const Tensor four = tensor(shape(4), DType::i32), six = tensor(shape(6), DType::i32);
  expect_rejected(attend({.q_positions = four, .scale = 1}), {"attention", "given together"});
  expect_rejected(attend({.mask = Mask::full, .q_positions = four, .k_positions = six, .scale = 1}), {"causal"});
  expect_rejected(attend({.q_positions = six, .k_positions = six, .scale = 1}), {"q_positions"});
  expect_rejected(attend({.q_positions = four, .k_positions = tensor(shape(6)), .scale = 1}), {"k_positions"});
  const auto merge = [&](const Tensor& part, const Tensor& part_lse, const Tensor& out, const Tensor& all) {
    return [=](Ops& ops) { ops(MergeAttentionArgs{.part = part, .part_lse = part_lse, .out = out, .lse = all}); };
  };
  expect_rejected(merge(q, lse, tensor(q.shape, DType::bf16), lse), {"merge_attention", "out"});
  expect_rejected(merge(q, lse, k, lse), {"merge_attention", "out"});
  expect_rejected(merge(q, tensor(shape(4, 2)), q, lse), {"merge_attention", "part_lse"});
  expect_rejected(merge(q, lse, q, tensor(shape(2, 4), DType::f16)), {"merge_attention", "lse"});
  expect_rejected(merge(lse, lse, lse, lse), {"merge_attention", "three dims"});
}

// The backward reference itself, against differences of the forward one.
TEST(Attention, ReferenceGradientsAreDifferencesOfTheForward) {
  for (const auto& c : std::vector<AttentionCase>{
           {.queries = 5, .keys = 7, .N = 2, .G = 1, .D = 3},
           {.queries = 7, .keys = 4, .N = 2, .G = 2, .D = 3},
           {.queries = 6, .keys = 6, .N = 2, .G = 1, .D = 2, .mask = Mask::full, .dropout = 0.3f},
           {.queries = 3, .keys = 4, .D = 2, .window = 4, .q_positions = {1, 5, 6}, .k_positions = {0, 2, 3, 6}},
           {.D = 2, .window = 2, .q_offsets = {0, 3, 8}, .k_offsets = {0, 4, 9}}}) {
    const AttentionProblem p = problem_of(c);
    const Shape q_shape = shape(p.q_rows(), c.N, c.D), k_shape = shape(p.k_rows(), c.G, c.D);
    const Values q = normal_values(q_shape, 1), k = normal_values(k_shape, 2), v = normal_values(k_shape, 3);
    const Values dout = normal_values(q_shape, 4);
    const auto loss = [&](const Values& q1, const Values& k1, const Values& v1) {
      const AttentionResult result = attention_reference(p, q1, k1, v1);
      double sum = 0;
      for (std::size_t i = 0; i < dout.size(); ++i) sum += dout[i] * result.out.value[i];
      return sum;
    };
    const AttentionResult forward = attention_reference(p, q, k, v);
    const auto gradients = attention_back_reference(p, {q, k, v, forward.out.value, dout, forward.lse.value});
    const auto near = [](const Values& a, const Values& b) {
      for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-8);
    };
    near(gradients.dq.value, finite_differences([&](const Values& x) { return loss(x, k, v); }, q));
    near(gradients.dk.value, finite_differences([&](const Values& x) { return loss(q, x, v); }, k));
    near(gradients.dv.value, finite_differences([&](const Values& x) { return loss(q, k, x); }, v));
  }
}

}  // namespace
}  // namespace tera::test
