#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tera/backend/cpu/cpu_ops.h"
#include "tera/base/error.h"
#include "tera/ops/expert_rows.h"
#include "tests/support/gpu.h"
#include "tests/support/op_test.h"

namespace tera::test {
namespace {

using Numbers = std::vector<std::int64_t>;

struct GroupCase {
  std::int64_t tokens, topk, experts;  // experts of all ranks
  std::int64_t first = 0, groups = 0;  // those of this one; 0: all
  std::int64_t rows = -1;              // R; -1: as many as there are choices
  std::int64_t capacity = 0;
  bool weights = false, overflow = true;
  std::int64_t holes = 0;   // every so many choices is none
  bool one_expert = false;  // everyone chooses the same

  std::int64_t choices() const { return tokens * topk; }
  std::int64_t group_count() const { return groups > 0 ? groups : experts; }
  std::int64_t row_count() const { return rows >= 0 ? rows : capacity > 0 ? group_count() * capacity : choices(); }
  std::string name() const {
    return fmt::format("group_rows [{},{}] experts {}+{} of {} rows {} capacity {} weights {} holes {} one {}", tokens,
                       topk, first, group_count(), experts, row_count(), capacity, weights, holes, one_expert);
  }
  Values chosen() const {
    Values out = integer_values(shape(tokens, topk), 5, experts);
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (one_expert) out[i] = static_cast<double>(first);
      if (holes > 0 && i % static_cast<std::size_t>(holes) == 0) out[i] = i % 2 == 0 ? -1 : -7;
    }
    return out;
  }
};

// The choices of each expert here that get a row, ascending; `chosen` and `weights` are of all choices.
std::vector<Numbers> kept_choices(const GroupCase& c, const Values& chosen, const Values& weights) {
  std::vector<Numbers> kept(static_cast<std::size_t>(c.group_count()));
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const auto g = static_cast<std::int64_t>(chosen[i]) - c.first;
    if (chosen[i] >= 0 && g >= 0 && g < c.group_count())
      kept[static_cast<std::size_t>(g)].push_back(static_cast<std::int64_t>(i));
  }
  if (c.capacity == 0) return kept;
  for (Numbers& choices : kept) {
    const auto heavier = [&](std::int64_t a, std::int64_t b) {
      const double left = weights[static_cast<std::size_t>(a)], right = weights[static_cast<std::size_t>(b)];
      return std::isnan(right) ? !std::isnan(left) : left > right;
    };
    if (c.weights) std::stable_sort(choices.begin(), choices.end(), heavier);
    if (static_cast<std::int64_t>(choices.size()) > c.capacity) choices.resize(static_cast<std::size_t>(c.capacity));
    std::sort(choices.begin(), choices.end());
  }
  return kept;
}

void run_case(const GroupCase& c, const Values& weight_values = {}) {
  OpCase op(c.name());
  const Shape of_choices = shape(c.tokens, c.topk);
  const Handle experts = op.input("experts", of_choices, DType::i32, c.chosen());
  const Handle weights = op.input("weights", of_choices, DType::f32,
                                  weight_values.empty() ? integer_values(of_choices, 6, 5) : weight_values);
  const Handle offsets = op.output("offsets", shape(c.group_count() + 1), DType::i32, {.terms = 0});
  const Handle sources = op.output("sources", shape(c.row_count()), DType::i32, {.terms = 0});
  const Handle places = op.output("places", of_choices, DType::i32, {.terms = 0});
  const Handle overflow = op.output("overflow", shape(1), DType::i32, {.terms = 0});
  op.call([=](Ops& ops, const Bound& at) {
    GroupRowsArgs args{.experts = at[experts], .offsets = at[offsets], .sources = at[sources], .places = at[places]};
    args.first_expert = c.first, args.capacity = c.capacity;
    if (c.weights) args.weights = at[weights];
    if (c.overflow) args.overflow = at[overflow];
    ops(args);
  });
  op.reference([=](Reference& r) {
    const auto kept = kept_choices(c, r[experts], r[weights]);
    Values want_sources(static_cast<std::size_t>(c.row_count()), -2), want_places(r[places].size(), -1);
    std::int64_t row = 0, given = 0;
    const auto all = std::count_if(r[experts].begin(), r[experts].end(), [&](double e) {
      return e >= static_cast<double>(c.first) && e < static_cast<double>(c.first + c.group_count());
    });
    for (std::size_t g = 0; g < kept.size(); ++g) {
      const std::int64_t begin = std::min(row, c.row_count());
      r.expect(offsets, g, static_cast<double>(begin), 0);
      for (std::int64_t choice : kept[g]) {
        if (row < c.row_count()) {
          want_sources[static_cast<std::size_t>(row)] = static_cast<double>(choice);
          want_places[static_cast<std::size_t>(choice)] = static_cast<double>(row);
          ++given;
        }
        ++row;
      }
      if (c.capacity == 0) continue;
      for (; row < begin + c.capacity; ++row) want_sources[static_cast<std::size_t>(row)] = -1;
    }
    r.expect(offsets, kept.size(), static_cast<double>(std::min(row, c.row_count())), 0);
    for (std::size_t i = 0; i < want_sources.size(); ++i) r.expect(sources, i, want_sources[i], 0);
    for (std::size_t i = 0; i < want_places.size(); ++i) r.expect(places, i, want_places[i], 0);
    r.expect(overflow, 0, c.overflow ? static_cast<double>(all - given) : 77, 0);
  });
  op.run();
}

TEST(GroupRowsOp, EveryChoiceHasItsRow) {
  run_case({.tokens = 1, .topk = 1, .experts = 1});
  run_case({.tokens = 7, .topk = 2, .experts = 4});
  run_case({.tokens = 7, .topk = 2, .experts = 4, .overflow = false});
  run_case({.tokens = 33, .topk = 3, .experts = 5, .holes = 4});
  run_case({.tokens = 5, .topk = 2, .experts = 300});  // most experts have no row
  run_case({.tokens = 40, .topk = 8, .experts = 8, .one_expert = true});
  run_case({.tokens = 1000, .topk = 8, .experts = 512});
  run_case({.tokens = 3000, .topk = 7, .experts = 1024});
  run_case({.tokens = 20011, .topk = 2, .experts = 8, .holes = 3});  // many blocks of a GPU
}

TEST(GroupRowsOp, ExpertsOfOneRank) {
  for (std::int64_t first : {0, 2, 6}) run_case({.tokens = 50, .topk = 3, .experts = 8, .first = first, .groups = 2});
  run_case({.tokens = 50, .topk = 3, .experts = 8, .first = 100, .groups = 4});  // nobody's choice
  run_case({.tokens = 5000, .topk = 4, .experts = 256, .first = 128, .groups = 64, .rows = 9000});
}

TEST(GroupRowsOp, RowsThatAreTooMany) {
  for (std::int64_t rows : {0, 1, 50, 99, 100, 101, 250})
    run_case({.tokens = 50, .topk = 2, .experts = 6, .rows = rows});
  run_case({.tokens = 9000, .topk = 2, .experts = 16, .rows = 10007});
}

TEST(GroupRowsOp, NoTokens) {
  run_case({.tokens = 0, .topk = 2, .experts = 3, .rows = 5});
  run_case({.tokens = 0, .topk = 2, .experts = 3, .capacity = 2});
}

TEST(GroupRowsOp, Capacity) {
  for (bool weights : {false, true})
    for (std::int64_t capacity : {1, 3, 12, 40, 200}) {
      run_case({.tokens = 60, .topk = 2, .experts = 5, .capacity = capacity, .weights = weights});
      run_case(
          {.tokens = 60, .topk = 2, .experts = 5, .rows = 1100, .capacity = capacity, .weights = weights, .holes = 7});
      run_case(
          {.tokens = 60, .topk = 2, .experts = 9, .first = 3, .groups = 4, .capacity = capacity, .weights = weights});
    }
  for (bool weights : {false, true}) {
    run_case({.tokens = 9000, .topk = 2, .experts = 4, .capacity = 1111, .weights = weights, .one_expert = true});
    run_case({.tokens = 9000, .topk = 4, .experts = 64, .capacity = 500, .weights = weights, .overflow = false});
  }
}

// Weights that differ in single bits, that are equal, of both zeros, infinite and NaN.
TEST(GroupRowsOp, TheHeaviestStay) {
  const GroupCase c{.tokens = 2000, .topk = 2, .experts = 3, .capacity = 300, .weights = true};
  Values weights = normal_values(shape(c.tokens, c.topk), 8);
  run_case(c, weights);
  const double infinity = std::numeric_limits<double>::infinity();
  const double special[] = {0.0, -0.0, infinity, -infinity, std::nan(""), -std::nan(""), 1.0, 1.0 + 0x1p-23, -1.0};
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = special[i * 5 % 9];
  run_case(c, weights);
  run_case({.tokens = 2000, .topk = 2, .experts = 3, .capacity = 900, .weights = true}, weights);
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = 0.25;
  run_case(c, weights);
}

// Some of every kind of source, and choices of each token.
Values some_sources(std::int64_t rows, std::int64_t choices) {
  Values out = integer_values(shape(rows), 9, choices);
  for (std::size_t i = 0; i < out.size(); ++i)
    if (i % 7 == 3) out[i] = -1;
  for (std::size_t i = out.size() - out.size() / 5; i < out.size(); ++i) out[i] = -2;
  return out;
}

void run_permute(DType dtype, std::int64_t tokens, std::int64_t topk, std::int64_t rows, std::int64_t width) {
  OpCase op(fmt::format("permute {} [{},{}] topk {} rows {}", name_of(dtype), tokens, width, topk, rows));
  const Handle x = op.input("x", shape(tokens, width), dtype, normal_values(shape(tokens, width), 1));
  const Handle sources = op.input("sources", shape(rows), DType::i32, some_sources(rows, tokens * topk));
  const Handle y = op.output("y", shape(rows, width), dtype, {.terms = 0});
  op.call([=](Ops& ops, const Bound& at) {
    ops(PermuteArgs{.x = at[x], .sources = at[sources], .y = at[y], .topk = topk});
  });
  op.reference([=](Reference& r) {
    const auto w = static_cast<std::size_t>(width);
    for (std::size_t i = 0; i < r[y].size(); ++i) {
      const double source = r[sources][i / w];
      const auto token = static_cast<std::size_t>(std::max(source, 0.0)) / static_cast<std::size_t>(topk);
      r.expect(y, i, source == -2 ? 77 : source == -1 ? 0 : r[x][token * w + i % w], 0);
    }
  });
  op.run();
}

TEST(PermuteOp, TakesRowsOfTokens) {
  for (DType dtype : float_dtypes) {
    run_permute(dtype, 1, 1, 1, 1);
    for (std::int64_t width : {1, 8, 37, 64, 256, 1000}) run_permute(dtype, 9, 3, 23, width);
    run_permute(dtype, 70, 8, 560, 264);
  }
  run_permute(DType::bf16, 300, 2, 700, 2056);
}

enum class Residual { none, apart, in_place };

void run_unpermute(DType dtype, std::int64_t tokens, std::int64_t topk, std::int64_t rows, std::int64_t width,
                   Residual residual) {
  OpCase op(fmt::format("unpermute {} [{},{}] topk {} rows {} residual {}", name_of(dtype), tokens, width, topk, rows,
                        static_cast<int>(residual)));
  const Shape y_shape = shape(tokens, width);
  Values place_values = integer_values(shape(tokens, topk), 2, rows + 2);  // some have no row
  for (double& row_of_choice : place_values)
    row_of_choice = row_of_choice >= static_cast<double>(rows) ? -1 : row_of_choice;
  const Handle x = op.input("x", shape(rows, width), dtype, normal_values(shape(rows, width), 1));
  const Handle places = op.input("places", shape(tokens, topk), DType::i32, place_values);
  const Handle other = op.input("residual", y_shape, dtype, normal_values(y_shape, 3));
  const Handle y = op.output("y", y_shape, dtype, {.terms = 0}, normal_values(y_shape, 4));
  op.call([=](Ops& ops, const Bound& at) {
    UnpermuteArgs args{.x = at[x], .places = at[places], .y = at[y]};
    if (residual != Residual::none) args.residual = residual == Residual::apart ? at[other] : at[y];
    ops(args);
  });
  op.reference([=](Reference& r) {
    const auto w = static_cast<std::size_t>(width), k_count = static_cast<std::size_t>(topk);
    for (std::size_t i = 0; i < r[y].size(); ++i) {
      // The sum is in fp32 and in the order of k: this op promises its order, and so its bits.
      float sum = residual == Residual::none ? 0 : static_cast<float>(r[residual == Residual::apart ? other : y][i]);
      for (std::size_t k = 0; k < k_count; ++k) {
        const double row_of_choice = r[places][i / w * k_count + k];
        if (row_of_choice >= 0) sum += static_cast<float>(r[x][static_cast<std::size_t>(row_of_choice) * w + i % w]);
      }
      r.expect(y, i, OpCase::stored(dtype, static_cast<double>(sum)), 0);
    }
  });
  op.run();
}

TEST(UnpermuteOp, AddsTheRowsOfAToken) {
  for (DType dtype : float_dtypes)
    for (Residual residual : {Residual::none, Residual::apart, Residual::in_place}) {
      run_unpermute(dtype, 1, 1, 1, 1, residual);
      for (std::int64_t width : {1, 8, 37, 256, 1000}) run_unpermute(dtype, 11, 3, 30, width, residual);
      for (std::int64_t topk : {1, 2, 4, 8, 9, 40}) run_unpermute(dtype, 13, topk, 60, 264, residual);
    }
  run_unpermute(DType::bf16, 300, 2, 700, 2056, Residual::apart);
}

// permute and unpermute use the output of group_rows: every token gets its own row back, once for each of its choices.
TEST(UnpermuteOp, UndoesPermute) {
  constexpr std::int64_t tokens = 37, topk = 4, experts = 6, width = 24;
  OpCase op("there and back");
  const Handle chosen =
      op.input("experts", shape(tokens, topk), DType::i32, integer_values(shape(tokens, topk), 3, experts));
  const Handle x = op.input("x", shape(tokens, width), DType::f32, integer_values(shape(tokens, width), 4, 1000));
  const std::int64_t rows = tokens * topk;
  const Handle there = op.output("there", shape(rows, width), DType::f32, {.terms = 0});
  const Handle y = op.output("y", shape(tokens, width), DType::f32, {.terms = 0});
  const Handle offsets = op.output("offsets", shape(experts + 1), DType::i32, {.terms = 0});
  const Handle sources = op.output("sources", shape(rows), DType::i32, {.terms = 0});
  const Handle places = op.output("places", shape(tokens, topk), DType::i32, {.terms = 0});
  op.call([=](Ops& ops, const Bound& at) {
    ops(GroupRowsArgs{.experts = at[chosen], .offsets = at[offsets], .sources = at[sources], .places = at[places]});
    ops(PermuteArgs{.x = at[x], .sources = at[sources], .y = at[there], .topk = topk});
    ops(UnpermuteArgs{.x = at[there], .places = at[places], .y = at[y]});
  });
  op.reference([=](Reference& r) {
    std::vector<std::size_t> order(static_cast<std::size_t>(rows));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return r[chosen][a] < r[chosen][b]; });
    for (std::size_t row = 0; row < order.size(); ++row) {
      r.expect(sources, row, static_cast<double>(order[row]), 0);
      r.expect(places, order[row], static_cast<double>(row), 0);
      for (std::size_t j = 0; j < width; ++j) r.expect(there, row * width + j, r[x][order[row] / topk * width + j], 0);
    }
    for (std::int64_t g = 0; g <= experts; ++g)
      r.expect(offsets, static_cast<std::size_t>(g),
               static_cast<double>(std::count_if(r[chosen].begin(), r[chosen].end(),
                                                 [&](double e) { return e < static_cast<double>(g); })),
               0);
    for (std::size_t i = 0; i < r[y].size(); ++i) r.expect(y, i, topk * r[x][i], 0);
  });
  op.run();
}

TEST(ExpertRowOps, RefuseForeignRows) {
  if (test_device() == TestDevice::gpu) GTEST_SKIP() << "a GPU cannot refuse";
  float memory[64] = {};
  std::int32_t number = 0;
  const Tensor one = make_tensor(&number, shape(1), DType::i32), x = make_tensor(memory, shape(4, 2), DType::f32);
  const Tensor y = make_tensor(memory + 32, shape(1, 2), DType::f32);
  cpu::CpuOps ops(1, cpu::best_isa());
  number = 8;
  EXPECT_THROW(ops(PermuteArgs{.x = x, .sources = one, .y = y, .topk = 2}), Error);
  number = 7;
  EXPECT_NO_THROW(ops(PermuteArgs{.x = x, .sources = one, .y = y, .topk = 2}));
  EXPECT_THROW(ops(UnpermuteArgs{.x = x, .places = one.view(shape(1, 1)), .y = y}), Error);
}

TEST(ExpertRowOps, RejectWrongTensors) {
  float memory[64] = {};
  const auto f32 = [&](Shape s) { return make_tensor(memory, s, DType::f32); };
  const auto i32 = [&](Shape s) { return make_tensor(memory, s, DType::i32); };
  const GroupRowsArgs good{
      .experts = i32(shape(4, 2)), .offsets = i32(shape(4)), .sources = i32(shape(8)), .places = i32(shape(4, 2))};
  EXPECT_NO_THROW(good.check());
  const auto refuses = [&](auto change, const char* words) {
    GroupRowsArgs args = good;
    change(args);
    expect_rejected([&](Ops& ops) { ops(args); }, {"group_rows", words});
  };
  refuses([&](GroupRowsArgs& a) { a.experts = f32(shape(4, 2)); }, "experts is f32[4,2]");
  refuses([&](GroupRowsArgs& a) { a.experts = i32(shape(8)); }, "experts and places have two");
  refuses([&](GroupRowsArgs& a) { a.experts = i32(shape(4, 4)).slice(1, 0, 2); }, "experts is i32[4,2] (strided)");
  refuses([&](GroupRowsArgs& a) { a.places = i32(shape(2, 4)); }, "places is i32[2,4]");
  refuses([&](GroupRowsArgs& a) { a.experts = a.places = i32(shape(4, 0)); }, "one expert at least");
  refuses([&](GroupRowsArgs& a) { a.offsets = i32(shape(1)); }, "1 to 1024 experts");
  refuses([&](GroupRowsArgs& a) { a.offsets = i32(shape(1026)); }, "1 to 1024 experts");
  refuses([&](GroupRowsArgs& a) { a.sources = {}; }, "sources");
  refuses([&](GroupRowsArgs& a) { a.sources = i32(shape(std::int64_t{1} << 31)); }, "32 bits");
  refuses([&](GroupRowsArgs& a) { a.first_expert = -1; }, "first_expert");
  refuses([&](GroupRowsArgs& a) { a.capacity = -1; }, "capacity");
  refuses([&](GroupRowsArgs& a) { a.capacity = 3; }, "capacity");
  refuses([&](GroupRowsArgs& a) { a.weights = f32(shape(4, 2)); }, "capacity");
  refuses([&](GroupRowsArgs& a) { a.capacity = 2, a.weights = f32(shape(8)); }, "weights is f32[8]");
  refuses([&](GroupRowsArgs& a) { a.overflow = i32(shape(2)); }, "overflow is i32[2]");

  const Tensor x = f32(shape(4, 2)), y = f32(shape(8, 2));
  expect_rejected([&](Ops& ops) { ops(PermuteArgs{.x = x, .sources = i32(shape(8)), .y = x, .topk = 2}); },
                  {"permute: y is f32[4,2]", "[8,2]"});
  expect_rejected([&](Ops& ops) { ops(PermuteArgs{.x = x, .sources = f32(shape(8)), .y = y, .topk = 2}); },
                  {"permute: sources is f32[8]"});
  expect_rejected([&](Ops& ops) { ops(PermuteArgs{.x = x, .sources = i32(shape(8)), .y = y, .topk = 0}); },
                  {"permute", "topk"});
  expect_rejected([&](Ops& ops) { ops(PermuteArgs{.x = i32(shape(4, 2)), .sources = i32(shape(8)), .y = y}); },
                  {"permute: x is i32[4,2]"});
  expect_rejected([&](Ops& ops) { ops(UnpermuteArgs{.x = y, .places = i32(shape(4, 2)), .y = y}); },
                  {"unpermute: y is f32[8,2]", "[4,2]"});
  expect_rejected([&](Ops& ops) { ops(UnpermuteArgs{.x = y, .places = i32(shape(4, 2)), .y = x, .residual = y}); },
                  {"unpermute: residual is f32[8,2]"});
  expect_rejected([&](Ops& ops) { ops(UnpermuteArgs{.x = y, .places = i32(shape(8)), .y = x}); }, {"unpermute", "two"});
}

}  // namespace
}  // namespace tera::test
