// What callers rely on beyond single calls: split keys merge, packed rows, NaN is not hidden, bad offsets are refused.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tera/backend/cpu/cpu_ops.h"
#include "tera/backend/cpu/workspace.h"
#include "tera/base/error.h"
#include "tera/ops/attention.h"
#include "tests/ops/attention_reference.h"
#include "tests/support/close.h"
#include "tests/support/gpu.h"

namespace tera::test {
namespace {

using Floats = std::vector<float>;

Floats normal_floats(const Shape& shape, std::uint64_t seed) {
  const Values values = normal_values(shape, seed);
  return Floats(values.begin(), values.end());
}
Values doubles(const Floats& floats) { return Values(floats.begin(), floats.end()); }
Tensor tensor(Floats& values, const Shape& shape) { return make_tensor(values.data(), shape, DType::f32); }

struct AlignedBytes {
  alignas(64) std::byte bytes[64];
};

// Ops with as much workspace as the largest call here needs.
class AttentionProperty : public testing::Test {
 protected:
  void forward(AttentionArgs args) {
    if (test_device() == TestDevice::gpu) {
      Tensor* const tensors[] = {&args.q,
                                 &args.k,
                                 &args.v,
                                 &args.out,
                                 &args.lse,
                                 &args.shape.q_offsets,
                                 &args.shape.k_offsets,
                                 &args.shape.q_positions,
                                 &args.shape.k_positions,
                                 &args.shape.q_rows,
                                 &args.shape.k_rows};
      return call_on_gpu(tensors, [&](Ops& ops) { ops(args); });
    }
    bind(rules_.workspace(args));
    ops_(args);
  }
  void backward(AttentionBackArgs args) {
    if (test_device() == TestDevice::gpu) {
      Tensor* const tensors[] = {&args.q,
                                 &args.k,
                                 &args.v,
                                 &args.out,
                                 &args.dout,
                                 &args.lse,
                                 &args.dq,
                                 &args.dk,
                                 &args.dv,
                                 &args.shape.q_offsets,
                                 &args.shape.k_offsets,
                                 &args.shape.q_positions,
                                 &args.shape.k_positions,
                                 &args.shape.q_rows,
                                 &args.shape.k_rows};
      return call_on_gpu(tensors, [&](Ops& ops) { ops(args); });
    }
    bind(rules_.workspace(args));
    ops_(args);
  }

 private:
  void bind(std::size_t bytes) {
    workspace_.resize((bytes + 63) / 64);
    ops_.bind_workspace({workspace_.data()->bytes, bytes});
  }

  cpu::CpuOps ops_{2, cpu::best_isa()};
  cpu::CpuWorkspaceRules rules_{2};
  std::vector<AlignedBytes> workspace_;
};

constexpr std::int64_t N = 2, G = 1, D = 16;
const float scale = 0.25f;

// out and lse of keys seen in two parts, as ring attention merges them.
void merge(Floats& out, Floats& lse, const Floats& other_out, const Floats& other_lse, std::int64_t queries) {
  for (std::int64_t head = 0; head < N; ++head)
    for (std::int64_t i = 0; i < queries; ++i) {
      const auto row = static_cast<std::size_t>(head * queries + i);
      const double a = lse[row], b = other_lse[row], largest = std::max(a, b);
      const double all = largest + std::log(std::exp(a - largest) + std::exp(b - largest));
      for (std::int64_t d = 0; d < D; ++d) {
        const auto at = static_cast<std::size_t>((i * N + head) * D + d);
        out[at] = static_cast<float>(out[at] * std::exp(a - all) + other_out[at] * std::exp(b - all));
      }
      lse[row] = static_cast<float>(all);
    }
}

void expect_close(const Floats& got, const Measured& expected, std::int64_t terms) {
  for (std::size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(static_cast<double>(got[i]), expected.value[i], tolerance(DType::f32, terms, expected.magnitude[i]))
        << i;
}

// Backward of each part with the merged out and lse gives the gradients of unsplit attention: context parallelism
// relies on this.
TEST_F(AttentionProperty, PartsOfTheKeysMergeExactly) {
  constexpr std::int64_t queries = 50, keys = 333, cut = 70, terms = D + keys;
  const Shape q_shape = shape(queries, N, D), k_shape = shape(keys, G, D), lse_shape = shape(N, queries);
  Floats q = normal_floats(q_shape, 1), k = normal_floats(k_shape, 2), v = normal_floats(k_shape, 3);
  Floats dout = normal_floats(q_shape, 4);
  const AttentionShape s{.mask = Mask::full, .scale = scale};
  Floats out[2], lse[2], dq[2], dk(k.size()), dv(v.size());
  const std::int64_t bounds[] = {0, cut, keys};
  const auto part = [&](Floats& of, int i) { return tensor(of, k_shape).rows(bounds[i], bounds[i + 1]); };
  for (int i = 0; i < 2; ++i) {
    out[i].resize(q.size());
    lse[i].resize(static_cast<std::size_t>(N * queries));
    dq[i].resize(q.size());
    forward({.q = tensor(q, q_shape),
             .k = part(k, i),
             .v = part(v, i),
             .out = tensor(out[i], q_shape),
             .lse = tensor(lse[i], lse_shape),
             .shape = s});
  }
  merge(out[0], lse[0], out[1], lse[1], queries);
  for (int i = 0; i < 2; ++i)
    backward({.q = tensor(q, q_shape),
              .k = part(k, i),
              .v = part(v, i),
              .out = tensor(out[0], q_shape),
              .dout = tensor(dout, q_shape),
              .lse = tensor(lse[0], lse_shape),
              .dq = tensor(dq[i], q_shape),
              .dk = part(dk, i),
              .dv = part(dv, i),
              .shape = s});
  for (std::size_t i = 0; i < q.size(); ++i) dq[0][i] += dq[1][i];

  const AttentionProblem unsplit{.sequences = {{0, queries, 0, keys}},
                                 .N = N,
                                 .G = G,
                                 .D = D,
                                 .mask = Mask::full,
                                 .scale = static_cast<double>(scale)};
  const auto reference = attention_reference(unsplit, doubles(q), doubles(k), doubles(v));
  expect_close(out[0], reference.out, terms);
  expect_close(lse[0], reference.lse, terms);
  const auto gradients = attention_back_reference(
      unsplit, {doubles(q), doubles(k), doubles(v), reference.out.value, doubles(dout), reference.lse.value});
  expect_close(dq[0], gradients.dq, terms);
  expect_close(dk, gradients.dk, terms);
  expect_close(dv, gradients.dv, terms);
}

// q, k and v as slices of packed rows, and gradients into packed rows: the same bits as from tensors of their own.
TEST_F(AttentionProperty, PackedRowsGiveTheSameBits) {
  constexpr std::int64_t T = 300, heads = N + 2 * G;
  const Shape packed_shape = shape(T, heads, D), q_shape = shape(T, N, D), k_shape = shape(T, G, D);
  Floats packed = normal_floats(packed_shape, 1), dpacked(packed.size()), dout = normal_floats(q_shape, 2);
  const Tensor qkv = tensor(packed, packed_shape), dqkv = tensor(dpacked, packed_shape);
  const auto own = [&](const Floats& of, std::int64_t begin, std::int64_t count) {
    Floats copy;
    for (std::int64_t i = 0; i < T; ++i) {
      const auto row = of.begin() + (i * heads + begin) * D;
      copy.insert(copy.end(), row, row + count * D);
    }
    return copy;
  };
  Floats q = own(packed, 0, N), k = own(packed, N, G), v = own(packed, N + G, G);
  Floats out(q.size()), packed_out(q.size()), lse(N * T), packed_lse(N * T), dq(q.size()), dk(k.size()), dv(v.size());
  const AttentionShape s{.scale = scale};
  const Tensor q_slice = qkv.slice(1, 0, N), k_slice = qkv.slice(1, N, N + G), v_slice = qkv.slice(1, N + G, heads);
  forward(
      {tensor(q, q_shape), tensor(k, k_shape), tensor(v, k_shape), tensor(out, q_shape), tensor(lse, shape(N, T)), s});
  forward({q_slice, k_slice, v_slice, tensor(packed_out, q_shape), tensor(packed_lse, shape(N, T)), s});
  EXPECT_EQ(out, packed_out);
  EXPECT_EQ(lse, packed_lse);
  backward({tensor(q, q_shape), tensor(k, k_shape), tensor(v, k_shape), tensor(out, q_shape), tensor(dout, q_shape),
            tensor(lse, shape(N, T)), tensor(dq, q_shape), tensor(dk, k_shape), tensor(dv, k_shape), s});
  backward({q_slice, k_slice, v_slice, tensor(out, q_shape), tensor(dout, q_shape), tensor(lse, shape(N, T)),
            dqkv.slice(1, 0, N), dqkv.slice(1, N, N + G), dqkv.slice(1, N + G, heads), s});
  EXPECT_EQ(dq, own(dpacked, 0, N));
  EXPECT_EQ(dk, own(dpacked, N, G));
  EXPECT_EQ(dv, own(dpacked, N + G, G));
}

// A run that has gone wrong must be seen to: NaN in a key reaches every query that sees it, and none far before it.
// Heads computed apart, as ranks will, drop what they drop together: the draw is keyed by the head's number in the
// model.
TEST_F(AttentionProperty, DropoutDoesNotDependOnWhichHeadsAreHere) {
  constexpr std::int64_t rows = 40;
  const Shape q_shape = shape(rows, N, D), k_shape = shape(rows, G, D), lse_shape = shape(N, rows);
  Floats q = normal_floats(q_shape, 1), k = normal_floats(k_shape, 2), v = normal_floats(k_shape, 3);
  Floats dout = normal_floats(q_shape, 4), dk(k.size()), dv(v.size());
  Floats out[2], lse[2], dq[2];  // all heads at once; one by one
  for (int i = 0; i < 2; ++i) {
    out[i].resize(q.size());
    lse[i].resize(static_cast<std::size_t>(N * rows));
    dq[i].resize(q.size());
  }
  std::vector<std::int64_t> ids(rows);
  for (std::int64_t i = 0; i < rows; ++i) ids[static_cast<std::size_t>(i)] = 1000 + i;
  const Tensor row_ids = make_tensor(ids.data(), shape(rows), DType::i64);
  const auto run = [&](int i, std::int64_t first, std::int64_t heads) {
    const AttentionShape s{
        .scale = scale, .first_head = first, .dropout = 0.4f, .key = {7}, .q_rows = row_ids, .k_rows = row_ids};
    const auto part = [&](Floats& of) { return tensor(of, q_shape).slice(1, first, first + heads); };
    const Tensor part_lse = tensor(lse[i], lse_shape).rows(first, first + heads);
    const Tensor keys = tensor(k, k_shape), values = tensor(v, k_shape);
    forward({.q = part(q), .k = keys, .v = values, .out = part(out[i]), .lse = part_lse, .shape = s});
    backward({.q = part(q),
              .k = keys,
              .v = values,
              .out = part(out[i]),
              .dout = part(dout),
              .lse = part_lse,
              .dq = part(dq[i]),
              .dk = tensor(dk, k_shape),
              .dv = tensor(dv, k_shape),
              .shape = s});
  };
  run(0, 0, N);
  for (std::int64_t head = 0; head < N; ++head) run(1, head, 1);
  EXPECT_EQ(out[0], out[1]);
  EXPECT_EQ(lse[0], lse[1]);
  EXPECT_EQ(dq[0], dq[1]);
}

TEST_F(AttentionProperty, NotANumberIsHandedOn) {
  constexpr std::int64_t T = 100, bad = 70;
  const Shape q_shape = shape(T, N, D), k_shape = shape(T, G, D);
  Floats q = normal_floats(q_shape, 1), k = normal_floats(k_shape, 2), v = normal_floats(k_shape, 3);
  Floats out(q.size()), lse(N * T);
  k[bad * D + 3] = std::numeric_limits<float>::quiet_NaN();
  forward({tensor(q, q_shape),
           tensor(k, k_shape),
           tensor(v, k_shape),
           tensor(out, q_shape),
           tensor(lse, shape(N, T)),
           {.scale = scale}});
  for (std::int64_t i = 0; i < T; ++i)
    for (std::int64_t d = 0; d < N * D; ++d)
      ASSERT_EQ(std::isnan(out[static_cast<std::size_t>(i * N * D + d)]), i >= bad) << i;
}

TEST_F(AttentionProperty, BadOffsetsAreRefused) {
  if (test_device() == TestDevice::gpu) GTEST_SKIP() << "a GPU cannot refuse";
  constexpr std::int64_t T = 10;
  const Shape q_shape = shape(T, N, D), k_shape = shape(T, G, D);
  Floats q = normal_floats(q_shape, 1), k = normal_floats(k_shape, 2), out(q.size()), lse(N * T);
  for (std::vector<std::int32_t> offsets :
       {std::vector<std::int32_t>{0, 4, 11}, {1, 4, 10}, {0, 7, 5, 10}, {0, -3, 10}}) {
    AttentionShape s{.scale = scale};
    s.q_offsets = s.k_offsets = make_tensor(offsets.data(), shape(offsets.size()), DType::i32);
    EXPECT_THROW(forward({tensor(q, q_shape), tensor(k, k_shape), tensor(k, k_shape), tensor(out, q_shape),
                          tensor(lse, shape(N, T)), s}),
                 Error);
  }
}

}  // namespace
}  // namespace tera::test
