// Vocabulary-parallel cross entropy: columns are split into the shards of ranks. Each gives its stats, and gets the
// loss and its own columns of the gradient from the stats of all.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "tera/base/error.h"
#include "tera/base/joined.h"
#include "tera/ops/loss.h"
#include "tests/support/gpu.h"
#include "tests/support/op_test.h"

namespace tera::test {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

struct PartsCase {
  DType dtype;
  std::int64_t rows;
  std::vector<std::int64_t> columns;  // vocabulary columns in each part
  std::int64_t vocab;
  double spread = 2;
  bool loss_only = false;

  std::string name() const {
    return fmt::format("cross_entropy {} {} rows, parts {}, vocab {} spread {} loss only {}", name_of(dtype), rows,
                       joined(columns, "+"), vocab, spread, loss_only);
  }
  std::int64_t first(std::size_t part) const {
    return std::accumulate(columns.begin(), columns.begin() + static_cast<std::ptrdiff_t>(part), std::int64_t{0});
  }
};

struct PartsHandles {
  Handle targets, scale, stats;
  std::vector<Handle> logits, losses;
};

PartsHandles add_tensors(OpCase& op, const PartsCase& c) {
  const auto parts = static_cast<std::int64_t>(c.columns.size());
  Values targets = integer_values(shape(c.rows), 2, c.vocab);
  for (std::size_t t = 1; t < targets.size(); t += 3) targets[t] = -1;
  PartsHandles h{.targets = op.input("targets", shape(c.rows), DType::i32, targets),
                 .scale = op.input("scale", shape(1), DType::f32, {0.37}),
                 .stats = op.output("stats", shape(parts, c.rows, 3), DType::f32, {.terms = c.vocab})};
  for (std::size_t p = 0; p < c.columns.size(); ++p) {
    const Shape s = shape(c.rows, c.columns[p]);
    h.logits.push_back(op.output(fmt::format("logits {}", p), s, c.dtype, {.terms = c.loss_only ? 0 : c.vocab},
                                 normal_values(s, 10 + p, c.spread, 5)));
    h.losses.push_back(op.output(fmt::format("token_loss {}", p), shape(c.rows), DType::f32, {.terms = c.vocab}));
  }
  return h;
}

void call_parts(Ops& ops, const Bound& at, const PartsCase& c, const PartsHandles& h) {
  for (std::size_t p = 0; p < c.columns.size(); ++p) {
    const auto part = static_cast<std::int64_t>(p);
    ops(CrossEntropyStatsArgs{.logits = at[h.logits[p]],
                              .targets = at[h.targets],
                              .stats = at[h.stats].rows(part, part + 1).view(shape(c.rows, 3)),
                              .first = c.first(p),
                              .vocab = c.vocab});
  }
  for (std::size_t p = 0; p < c.columns.size(); ++p)
    ops(CrossEntropyArgs{.logits = at[h.logits[p]],
                         .targets = at[h.targets],
                         .token_loss = at[h.losses[p]],
                         .scale = c.loss_only ? Tensor{} : at[h.scale],
                         .stats = at[h.stats],
                         .first = c.first(p),
                         .vocab = c.vocab,
                         .loss_only = c.loss_only});
}

// logits: the columns that count.
double log_sum(const Values& logits) {
  double largest = -infinity, sum = 0;
  for (double x : logits) largest = std::max(largest, x);
  for (double x : logits) sum += std::exp(x - largest);
  return std::log(sum) + largest;
}

void expect_stats(Reference& r, const PartsCase& c, const PartsHandles& h, std::size_t p, std::size_t t) {
  const double target = r[h.targets][t];
  double largest = -infinity, sum = 0, chosen = 0;
  const auto used = [&](std::size_t v) { return target >= 0 && c.first(p) + static_cast<std::int64_t>(v) < c.vocab; };
  const auto columns = static_cast<std::size_t>(c.columns[p]);
  const double* row = &r[h.logits[p]][t * columns];
  for (std::size_t v = 0; v < columns && used(v); ++v) {
    largest = std::max(largest, row[v]);
    if (target == static_cast<double>(c.first(p)) + static_cast<double>(v)) chosen = row[v];
  }
  for (std::size_t v = 0; v < columns && used(v); ++v) sum += std::exp(row[v] - largest);
  const std::size_t at = (p * static_cast<std::size_t>(c.rows) + t) * 3;
  r.expect(h.stats, at, largest, 0);
  r.expect(h.stats, at + 1, sum, sum);
  r.expect(h.stats, at + 2, chosen, 0);
}

void expect_row(Reference& r, const PartsCase& c, const PartsHandles& h, std::size_t t) {
  Values full;  // the row of all parts
  for (std::size_t p = 0; p < c.columns.size(); ++p) {
    const auto columns = static_cast<std::size_t>(c.columns[p]);
    const double* row = &r[h.logits[p]][t * columns];
    full.insert(full.end(), row, row + columns);
    expect_stats(r, c, h, p, t);
  }
  full.resize(static_cast<std::size_t>(c.vocab));
  const bool counted = r[h.targets][t] >= 0;
  const auto target = static_cast<std::size_t>(counted ? r[h.targets][t] : 0);
  const double total = log_sum(full), loss = counted ? total - full[target] : 0;
  for (std::size_t p = 0; p < c.columns.size(); ++p) {
    r.expect(h.losses[p], t, loss, std::abs(loss) + 1);
    const auto columns = static_cast<std::size_t>(c.columns[p]);
    for (std::size_t v = 0; v < columns; ++v) {
      const std::size_t column = static_cast<std::size_t>(c.first(p)) + v, i = t * columns + v;
      const bool used = counted && column < full.size();
      const double hit = used && column == target ? 1 : 0;
      const double gradient = used ? r[h.scale][0] * (std::exp(full[column] - total) - hit) : 0;
      if (c.loss_only)
        r.expect(h.logits[p], i, r[h.logits[p]][i], 0);
      else
        r.expect(h.logits[p], i, gradient, std::abs(gradient) + (hit > 0 ? 1 : 1e-4));
    }
  }
}

void run_case(const PartsCase& c) {
  OpCase op(c.name());
  const PartsHandles h = add_tensors(op, c);
  op.call([&](Ops& ops, const Bound& at) { call_parts(ops, at, c, h); });
  op.reference([&](Reference& r) {
    for (std::size_t t = 0; t < r[h.targets].size(); ++t) expect_row(r, c, h, t);
  });
  op.run();
}

TEST(CrossEntropyPartsOp, LossAndGradient) {
  for (DType dtype : float_dtypes) {
    for (bool loss_only : {false, true}) {
      run_case({dtype, 5, {80}, 77, 2, loss_only});
      run_case({dtype, 5, {40, 40}, 80, 2, loss_only});
      run_case({dtype, 5, {40, 40}, 67, 2, loss_only});
      run_case({dtype, 5, {33, 20, 27}, 70, 2, loss_only});
      run_case({dtype, 5, {64, 64, 64}, 100, 2, loss_only});  // the last is padding
      run_case({dtype, 5, {1, 1, 1}, 2, 2, loss_only});
    }
    run_case({dtype, 3, {40, 40}, 80, 30});
    run_case({dtype, 2, {10000, 10000, 10000}, 29001});
    run_case({dtype, 1500, {24, 24}, 43});  // more rows than a GPU processes at a time
  }
}

TEST(CrossEntropyPartsOp, WideVocabularies) {
  for (bool loss_only : {false, true}) {
    run_case({DType::bf16, 2, {32064, 32064, 32064, 32064}, 128256, 2, loss_only});
    run_case({DType::bf16, 2, {75968, 75968}, 151669, 2, loss_only});  // more than a GPU keeps of a row
  }
  run_case({DType::f16, 2, {64128, 64128}, 128256});
}

// A matrix of logits in plain vectors, split into parts.
template <class T>
struct Cut {
  std::vector<T> logits;  // [rows, all columns]
  std::vector<std::int32_t> targets;
  std::int64_t vocab;

  std::int64_t rows() const { return static_cast<std::int64_t>(targets.size()); }
  std::int64_t width() const { return static_cast<std::int64_t>(logits.size() / targets.size()); }
  std::vector<T> columns(std::int64_t begin, std::int64_t end) const {
    std::vector<T> part;
    for (std::int64_t t = 0; t < rows(); ++t)
      part.insert(part.end(), logits.begin() + t * width() + begin, logits.begin() + t * width() + end);
    return part;
  }
};

template <class T>
struct PartResult {
  std::vector<T> gradient;  // [rows, columns]
  std::vector<float> loss;
};

template <class T>
std::vector<float> stats_of(Cut<T>& cut, const std::vector<std::int64_t>& bounds) {
  std::vector<float> all;
  for (std::size_t p = 0; p + 1 < bounds.size(); ++p) {
    std::vector<T> part = cut.columns(bounds[p], bounds[p + 1]);
    std::vector<float> stats(cut.targets.size() * 3);
    CrossEntropyStatsArgs args{
        .logits = make_tensor(part.data(), shape(cut.rows(), bounds[p + 1] - bounds[p]), dtype_of<T>()),
        .targets = make_tensor(cut.targets.data(), shape(cut.rows()), DType::i32),
        .stats = make_tensor(stats.data(), shape(cut.rows(), 3), DType::f32),
        .first = bounds[p],
        .vocab = cut.vocab};
    Tensor* const tensors[] = {&args.logits, &args.targets, &args.stats};
    call_once(tensors, [&](Ops& ops) { ops(args); });
    all.insert(all.end(), stats.begin(), stats.end());
  }
  return all;
}

// Without stats, [begin, end) are all columns.
template <class T>
PartResult<T> part_of(Cut<T>& cut, std::int64_t begin, std::int64_t end, std::vector<float> stats) {
  float scale = 0.25f;
  PartResult<T> result{cut.columns(begin, end), std::vector<float>(cut.targets.size(), 77.0f)};
  CrossEntropyArgs args{.logits = make_tensor(result.gradient.data(), shape(cut.rows(), end - begin), dtype_of<T>()),
                        .targets = make_tensor(cut.targets.data(), shape(cut.rows()), DType::i32),
                        .token_loss = make_tensor(result.loss.data(), shape(cut.rows()), DType::f32),
                        .scale = make_tensor(&scale, shape(1), DType::f32),
                        .first = begin,
                        .vocab = cut.vocab};
  std::vector<Tensor*> tensors = {&args.logits, &args.targets, &args.token_loss, &args.scale};
  if (!stats.empty()) {
    const auto parts = static_cast<std::int64_t>(stats.size()) / (3 * cut.rows());
    args.stats = make_tensor(stats.data(), shape(parts, cut.rows(), 3), DType::f32);
    tensors.push_back(&args.stats);
  }
  call_once(tensors, [&](Ops& ops) { ops(args); });
  return result;
}

template <class T>
std::vector<PartResult<T>> parts_of(Cut<T>& cut, const std::vector<std::int64_t>& bounds) {
  const std::vector<float> stats = stats_of(cut, bounds);
  std::vector<PartResult<T>> results;
  for (std::size_t p = 0; p + 1 < bounds.size(); ++p) results.push_back(part_of(cut, bounds[p], bounds[p + 1], stats));
  return results;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

template <class T>
Cut<T> random_cut(std::int64_t rows, std::int64_t columns, std::int64_t vocab, T (*convert)(float)) {
  Cut<T> cut{.logits = {}, .targets = {}, .vocab = vocab};
  for (double x : normal_values(shape(rows, columns), 3, 4)) cut.logits.push_back(convert(static_cast<float>(x)));
  for (double x : integer_values(shape(rows), 4, vocab)) cut.targets.push_back(static_cast<std::int32_t>(x));
  cut.targets[1] = -1;
  return cut;
}

template <class T>
void expect_the_bits(Cut<T> cut) {
  const std::int64_t width = cut.width();
  const std::vector<PartResult<T>> three = parts_of(cut, {0, width / 3, width - 5, width});
  EXPECT_TRUE(same_bits(three[0].loss, three[1].loss));
  EXPECT_TRUE(same_bits(three[0].loss, three[2].loss));
  const std::vector<PartResult<T>> one = parts_of(cut, {0, width});
  const PartResult<T> full = part_of(cut, 0, width, {});
  EXPECT_TRUE(same_bits(one[0].loss, full.loss));
  EXPECT_TRUE(same_bits(one[0].gradient, full.gradient));
}

TEST(CrossEntropyPartsOp, EveryPartHasTheSameLossAndOnePartIsTheWhole) {
  expect_the_bits(random_cut<float>(50, 3000, 2990, [](float x) { return x; }));
  expect_the_bits(random_cut<BFloat16>(50, 3000, 2997, to_bf16));
  expect_the_bits(random_cut<Float16>(50, 333, 333, to_f16));
}

TEST(CrossEntropyPartsOp, InfinitiesAndNan) {
  constexpr auto inf = static_cast<float>(infinity);
  const float nan = std::nanf("");
  Cut<float> cut{{-inf, -inf, 0, 0}, {2}, 4};  // nothing possible in the first part
  std::vector<PartResult<float>> parts = parts_of(cut, {0, 2, 4});
  EXPECT_NEAR(parts[0].loss[0], std::log(2.0f), 1e-6f);
  EXPECT_EQ(parts[0].gradient, (std::vector<float>{0, 0}));
  EXPECT_NEAR(parts[1].gradient[0], -0.125f, 1e-6f);
  cut.targets = {1};  // an impossible target
  parts = parts_of(cut, {0, 2, 4});
  EXPECT_EQ(parts[1].loss[0], inf);
  EXPECT_EQ(parts[0].gradient, (std::vector<float>{0, -0.25f}));
  for (const float broken : {nan, inf}) {
    cut.logits = {0, broken, 1, 2};
    parts = parts_of(cut, {0, 2, 4});
    EXPECT_TRUE(std::isnan(parts[1].loss[0])) << "a broken row must not look sound";
    EXPECT_TRUE(std::isnan(parts[1].gradient[1]));
  }
  cut.targets = {-1};
  parts = parts_of(cut, {0, 2, 4});
  EXPECT_EQ(parts[1].loss[0], 0.0f);
  EXPECT_EQ(parts[0].gradient, (std::vector<float>{0, 0}));
}

TEST(CrossEntropyPartsOp, RefusesTargetsOutsideTheVocabulary) {
  if (test_device() == TestDevice::gpu) GTEST_SKIP() << "a GPU cannot refuse";
  Cut<float> cut{{0, 1, 2, 3}, {3}, 3};
  EXPECT_THROW(stats_of(cut, {0, 2, 4}), Error);
  EXPECT_THROW(part_of(cut, 0, 2, {0, 0, 0}), Error);
}

TEST(CrossEntropyPartsOp, RejectsWrongTensors) {
  float memory[64] = {};
  const Tensor logits = make_tensor(memory, shape(2, 8), DType::f32), ids = make_tensor(memory, shape(2), DType::i32);
  const Tensor pair = make_tensor(memory, shape(2), DType::f32), one = make_tensor(memory, shape(1), DType::f32);
  const auto reject = [&](const Tensor& stats, std::int64_t first, std::vector<std::string> words) {
    const CrossEntropyArgs args{logits, ids, pair, one, stats, first, 16};
    expect_rejected([&](Ops& ops) { ops(args); }, words);
  };
  reject({}, 0, {"cross_entropy", "vocab"});
  reject(make_tensor(memory, shape(2, 3), DType::f32), 0, {"cross_entropy: stats is f32[2,3]", "[2,2,3]"});
  reject(make_tensor(memory, shape(2, 2, 3), DType::f32), -1, {"cross_entropy", "first"});
  reject(make_tensor(memory, shape(0, 2, 3), DType::f32), 0, {"cross_entropy", "one part"});
  const CrossEntropyArgs alone{
      .logits = logits, .targets = ids, .token_loss = pair, .scale = one, .first = 1, .vocab = 8};
  expect_rejected([&](Ops& ops) { ops(alone); }, {"cross_entropy", "first is 0"});

  const auto reject_stats = [&](const Tensor& stats, std::int64_t first, std::vector<std::string> words) {
    const CrossEntropyStatsArgs args{logits, ids, stats, first, 16};
    expect_rejected([&](Ops& ops) { ops(args); }, words);
  };
  reject_stats(make_tensor(memory, shape(2, 2), DType::f32), 0, {"cross_entropy_stats: stats is f32[2,2]", "[2,3]"});
  reject_stats(make_tensor(memory, shape(2, 3), DType::i32), 0, {"cross_entropy_stats: stats is i32[2,3]", "f32"});
  reject_stats(make_tensor(memory, shape(2, 3), DType::f32), -1, {"cross_entropy_stats", "first"});
}

}  // namespace
}  // namespace tera::test
