#include <fmt/core.h>
#include <gtest/gtest.h>

#include "tera/backend/cpu/cpu_ops.h"
#include "tera/base/error.h"
#include "tera/ops/embedding.h"
#include "tests/support/gpu.h"
#include "tests/support/op_test.h"

namespace tera::test {
namespace {

// The rows of a vocabulary shard: ids from `first` on. Without `partial` it has all ids.
struct TablePart {
  std::int64_t first = 0, rows = 11;
  bool partial = false;

  bool holds(double id) const { return id >= static_cast<double>(first) && id < static_cast<double>(first + rows); }
  std::size_t row(double id) const { return static_cast<std::size_t>(id) - static_cast<std::size_t>(first); }
  std::string name() const { return fmt::format("ids {}+{} partial {}", first, rows, partial); }
  // Ids are those of the table or up to 5 outside of it on both sides, which are negative where the table begins early.
  Values ids(std::int64_t count) const {
    Values out = integer_values(shape(count), 1, partial ? rows + 10 : rows);
    for (double& id : out) id += static_cast<double>(partial ? first - 5 : first);
    return out;
  }
};

OpCase forward_case(DType dtype, std::int64_t tokens, std::int64_t width, bool with_positions, TablePart part = {}) {
  constexpr std::int64_t max_positions = 7;
  OpCase op(
      fmt::format("embedding {} [{},{}] positions {} {}", name_of(dtype), tokens, width, with_positions, part.name()));
  const Handle ids = op.input("tokens", shape(tokens), DType::i32, part.ids(tokens));
  const Handle table = op.input("table", shape(part.rows, width), dtype, normal_values(shape(part.rows, width), 2));
  const Handle positions =
      op.input("positions", shape(tokens), DType::i32, integer_values(shape(tokens), 3, max_positions));
  const Handle position_table =
      op.input("position_table", shape(max_positions, width), dtype, normal_values(shape(max_positions, width), 4));
  const Handle y = op.output("y", shape(tokens, width), dtype, {.terms = with_positions ? 1 : 0});
  op.call([=](Ops& ops, const Bound& at) {
    EmbeddingArgs args{.tokens = at[ids], .table = at[table], .y = at[y]};
    args.first = part.first, args.partial = part.partial;
    if (with_positions) args.positions = at[positions], args.position_table = at[position_table];
    ops(args);
  });
  op.reference([=](Reference& r) {
    const auto w = static_cast<std::size_t>(width);
    for (std::size_t i = 0; i < r[y].size(); ++i) {
      const double id = r[ids][i / w], token = part.holds(id) ? r[table][part.row(id) * w + i % w] : 0;
      const double position_value = r[position_table][static_cast<std::size_t>(r[positions][i / w]) * w + i % w];
      r.expect(y, i, with_positions ? token + position_value : token, std::abs(token) + std::abs(position_value));
    }
  });
  return op;
}

// Few rows: each is hit several times.
OpCase backward_case(DType dtype, std::int64_t tokens, std::int64_t width, TablePart part = {.first = 0, .rows = 5}) {
  OpCase op(fmt::format("embedding_back {} [{},{}] {}", name_of(dtype), tokens, width, part.name()));
  const Handle ids = op.input("ids", shape(tokens), DType::i32, part.ids(tokens));
  const Handle dy = op.input("dy", shape(tokens, width), dtype, normal_values(shape(tokens, width), 2));
  const Handle dtable =
      op.output("dtable", shape(part.rows, width), DType::f32, {.terms = 0}, normal_values(shape(part.rows, width), 3));
  op.call([=](Ops& ops, const Bound& at) {
    ops(EmbeddingBackArgs{at[ids], at[dy], at[dtable], part.first, part.partial});
  });
  op.reference([=](Reference& r) {
    // The sum is in fp32 and in the order of t: this op promises its order, and so its bits.
    std::vector<float> sum(r[dtable].begin(), r[dtable].end());
    const auto w = static_cast<std::size_t>(width);
    for (std::size_t i = 0; i < r[dy].size(); ++i)
      if (part.holds(r[ids][i / w])) sum[part.row(r[ids][i / w]) * w + i % w] += static_cast<float>(r[dy][i]);
    for (std::size_t i = 0; i < sum.size(); ++i) r.expect(dtable, i, static_cast<double>(sum[i]), 0);
  });
  return op;
}

TEST(EmbeddingOp, Forward) {
  for (DType dtype : float_dtypes)
    for (std::int64_t width : {1, 16, 133})
      for (bool with_positions : {false, true}) forward_case(dtype, 9, width, with_positions).run();
  forward_case(DType::f32, 300, 133, true).run();  // several tasks
}

TEST(EmbeddingOp, Backward) {
  for (DType dtype : float_dtypes) {
    for (std::int64_t width : {1, 16, 133, 200}) backward_case(dtype, 23, width).run();
    backward_case(dtype, 700, 133).run();  // ids come more than a hundred times
  }
  backward_case(DType::f32, 23000, 16).run();  // thousands of times
}

TEST(EmbeddingOp, PartOfATable) {
  for (DType dtype : float_dtypes)
    for (const TablePart part : {TablePart{3, 4, true}, {4, 1, true}, {2000000000, 4, true}, {100, 5, false}})
      for (std::int64_t width : {16, 133}) {
        for (bool with_positions : {false, true}) forward_case(dtype, 37, width, with_positions, part).run();
        backward_case(dtype, 203, width, part).run();
      }
  backward_case(DType::bf16, 23000, 16, {3, 4, true}).run();  // thousands of times
}

TEST(EmbeddingOp, RefusesForeignIds) {
  if (test_device() == TestDevice::gpu) GTEST_SKIP() << "a GPU cannot refuse";
  float memory[64] = {};
  std::int32_t token = 4;
  const Tensor ids = make_tensor(&token, shape(1), DType::i32), table = make_tensor(memory, shape(4, 2), DType::f32);
  cpu::CpuOps ops(1, cpu::best_isa());
  for (std::int32_t bad : {4, -1, 1 << 30}) {
    token = bad;
    EXPECT_THROW(ops(EmbeddingArgs{.tokens = ids, .table = table, .y = table.rows(0, 1)}), Error);
    EXPECT_THROW(ops(EmbeddingBackArgs{.ids = ids, .dy = table.rows(0, 1), .dtable = table}), Error);
  }
  token = 1;  // row of another vocabulary shard
  EmbeddingArgs later{.tokens = ids, .table = table, .y = make_tensor(memory + 32, shape(1, 2), DType::f32)};
  later.first = 2;
  EXPECT_THROW(ops(later), Error);
  later.partial = true;
  EXPECT_NO_THROW(ops(later));
}

TEST(EmbeddingOp, RejectsWrongTensors) {
  float memory[64] = {};
  const Tensor table = make_tensor(memory, shape(4, 2), DType::f32), ids = make_tensor(memory, shape(3), DType::i32);
  const Tensor y = make_tensor(memory, shape(3, 2), DType::f32);
  expect_rejected([&](Ops& ops) { ops(EmbeddingArgs{.tokens = y, .table = table, .y = y}); },
                  {"embedding: tokens is f32[3,2]", "i32"});
  expect_rejected([&](Ops& ops) { ops(EmbeddingArgs{.tokens = ids, .table = table, .y = table}); },
                  {"embedding: y is f32[4,2]", "[3,2]"});
  expect_rejected([&](Ops& ops) { ops(EmbeddingArgs{.tokens = ids, .table = table, .y = y, .positions = ids}); },
                  {"embedding", "together"});
  expect_rejected([&](Ops& ops) { ops(EmbeddingBackArgs{.ids = ids, .dy = table, .dtable = table}); },
                  {"embedding_back: dy is f32[4,2]"});
  EmbeddingArgs args{.tokens = ids, .table = table, .y = y};
  for (std::int64_t first : {std::int64_t{-1}, std::int64_t{1} << 31}) {
    args.first = first;
    expect_rejected([&](Ops& ops) { ops(args); }, {"embedding", "first"});
    expect_rejected([&](Ops& ops) { ops(EmbeddingBackArgs{.ids = ids, .dy = y, .dtable = table, .first = first}); },
                    {"embedding_back", "first"});
  }
}

}  // namespace
}  // namespace tera::test
