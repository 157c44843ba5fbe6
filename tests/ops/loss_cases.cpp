#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tera/base/error.h"
#include "tera/ops/loss.h"
#include "tests/support/gpu.h"
#include "tests/support/op_test.h"

namespace tera::test {
namespace {

struct LossCase {
  DType dtype;
  std::int64_t rows, columns, vocab;
  double spread = 2;
  bool loss_only = false;
};

double cross_entropy(const Values& logits, std::size_t target) {
  double largest = -std::numeric_limits<double>::infinity(), sum = 0;
  for (double x : logits) largest = std::max(largest, x);
  for (double x : logits) sum += std::exp(x - largest);
  return std::log(sum) + largest - logits[target];
}

// Its gradient in closed form, for rows too long for differences.
Values cross_entropy_gradient(const Values& logits, std::size_t target, double factor) {
  double largest = -std::numeric_limits<double>::infinity(), sum = 0;
  for (double x : logits) largest = std::max(largest, x);
  for (double x : logits) sum += std::exp(x - largest);
  Values gradient;
  gradient.reserve(logits.size());
  for (double x : logits) gradient.push_back(factor * std::exp(x - largest) / sum);
  gradient[target] -= factor;
  return gradient;
}

constexpr std::size_t widest_for_differences = 2000;

OpCase loss_case(const LossCase& c) {
  OpCase op(fmt::format("cross_entropy {} [{},{}] vocab {} spread {} loss only {}", name_of(c.dtype), c.rows, c.columns,
                        c.vocab, c.spread, c.loss_only));
  const Shape s = shape(c.rows, c.columns);
  Values target_values = integer_values(shape(c.rows), 2, c.vocab);
  for (std::size_t t = 1; t < target_values.size(); t += 3) target_values[t] = -1;
  const Handle targets = op.input("targets", shape(c.rows), DType::i32, target_values);
  const Handle scale = op.input("scale", shape(1), DType::f32, {0.37});
  const Handle logits =
      op.output("logits", s, c.dtype, {.terms = c.loss_only ? 0 : c.vocab}, normal_values(s, 1, c.spread, 5));
  const Handle loss = op.output("token_loss", shape(c.rows), DType::f32, {.terms = c.vocab});
  op.call([=](Ops& ops, const Bound& at) {
    ops(CrossEntropyArgs{.logits = at[logits],
                         .targets = at[targets],
                         .token_loss = at[loss],
                         .scale = c.loss_only ? Tensor{} : at[scale],
                         .vocab = c.vocab,
                         .loss_only = c.loss_only});
  });
  op.reference([=](Reference& r) {
    const auto columns = static_cast<std::size_t>(c.columns), vocab = static_cast<std::size_t>(c.vocab);
    for (std::size_t t = 0; t < r[targets].size(); ++t) {
      const bool counted = r[targets][t] >= 0;
      const auto target = static_cast<std::size_t>(counted ? r[targets][t] : 0);
      const Values row(&r[logits][t * columns], &r[logits][t * columns] + vocab);
      const double value = counted ? cross_entropy(row, target) : 0;
      r.expect(loss, t, value, std::abs(value) + 1);
      const double factor = counted ? r[scale][0] : 0;
      const auto by_logits = [&](const Values& at) { return factor * cross_entropy(at, target); };
      Values gradient;
      if (!c.loss_only)
        gradient = vocab > widest_for_differences ? cross_entropy_gradient(row, target, factor)
                                                  : finite_differences(by_logits, row);
      for (std::size_t v = 0; v < columns; ++v) {
        const double g = v < vocab && !c.loss_only ? gradient[v] : 0;
        // One fp32 rounding of 1 - p matters at the target alone.
        const double size = std::abs(g) + (v == target ? 1 : 1e-4);
        if (c.loss_only)
          r.expect(logits, t * columns + v, r[logits][t * columns + v], 0);
        else
          r.expect(logits, t * columns + v, g, size);
      }
    }
  });
  return op;
}

TEST(CrossEntropyOp, LossAndGradient) {
  for (DType dtype : float_dtypes) {
    for (const auto& [columns, vocab] : {std::pair{1, 1}, {7, 5}, {64, 64}, {67, 66}, {160, 131}}) {
      loss_case({dtype, 4, columns, vocab}).run();
      loss_case({dtype, 4, columns, vocab, 2, true}).run();
    }
    loss_case({dtype, 3, 40, 40, 30}).run();
    loss_case({dtype, 2, 1104, 1101}).run();
    loss_case({dtype, 2500, 24, 23}).run();  // more rows than a GPU processes at a time
    loss_case({dtype, 2500, 24, 24, 2, true}).run();
  }
  loss_case({DType::f32, 400, 70, 70, 2, true}).run();  // several tasks
}

// Vocabularies of which a GPU cannot keep a whole row between its two sweeps.
TEST(CrossEntropyOp, WideVocabularies) {
  for (bool loss_only : {false, true}) {
    loss_case({DType::bf16, 3, 128256, 128256, 2, loss_only}).run();
    loss_case({DType::bf16, 3, 151936, 151936, 2, loss_only}).run();
    loss_case({DType::bf16, 3, 151936, 151669, 2, loss_only}).run();  // padded
  }
  loss_case({DType::f16, 3, 128256, 128256}).run();
}

TEST(CrossEntropyOp, TheReferenceOfWideRowsFollowsTheDifferences) {
  const Values logits = normal_values(shape(50), 1, 2);
  const auto f = [&](const Values& at) { return 0.37 * cross_entropy(at, 7); };
  const Values closed = cross_entropy_gradient(logits, 7, 0.37), differences = finite_differences(f, logits);
  for (std::size_t i = 0; i < logits.size(); ++i) EXPECT_NEAR(closed[i], differences[i], 1e-7);
}

// Runs the op on plain vectors and returns the gradient.
std::vector<float> run_loss(std::vector<float> logits, std::int32_t target, float& loss) {
  float scale = 1;
  const auto vocab = static_cast<std::int64_t>(logits.size());
  CrossEntropyArgs args{.logits = make_tensor(logits.data(), shape(1, vocab), DType::f32),
                        .targets = make_tensor(&target, shape(1), DType::i32),
                        .token_loss = make_tensor(&loss, shape(1), DType::f32),
                        .scale = make_tensor(&scale, shape(1), DType::f32),
                        .vocab = vocab};
  Tensor* const tensors[] = {&args.logits, &args.targets, &args.token_loss, &args.scale};
  call_once(tensors, [&](Ops& ops) { ops(args); });
  return logits;
}

TEST(CrossEntropyOp, InfinitiesAndNan) {
  const float infinity = std::numeric_limits<float>::infinity();
  float loss = 0;
  std::vector<float> gradient = run_loss({0, -infinity, 0, 1e4f - 1e4f, -3e38f}, 0, loss);
  EXPECT_NEAR(loss, std::log(3.0f), 1e-6f);
  EXPECT_EQ(gradient[1], 0.0f);
  EXPECT_EQ(gradient[4], 0.0f);
  EXPECT_NEAR(gradient[0], 1.0f / 3 - 1, 1e-6f);
  gradient = run_loss({5, -infinity}, 1, loss);  // an impossible target
  EXPECT_EQ(loss, infinity);
  EXPECT_EQ(gradient[1], -1.0f);
  for (const std::vector<float>& broken : {std::vector<float>{0, std::nanf(""), 1}, {0, infinity, 1}}) {
    gradient = run_loss(broken, 0, loss);
    EXPECT_TRUE(std::isnan(loss)) << "a broken row must not look sound";
    EXPECT_TRUE(std::isnan(gradient[2]));
  }
  gradient = run_loss({0, std::nanf(""), 1}, -1, loss);
  EXPECT_EQ(loss, 0.0f);
  EXPECT_EQ(gradient, (std::vector<float>{0, 0, 0}));
}

TEST(CrossEntropyOp, RefusesTargetsOutsideTheVocabulary) {
  if (test_device() == TestDevice::gpu) GTEST_SKIP() << "a GPU cannot refuse";
  float loss = 0;
  EXPECT_THROW(run_loss({0, 1, 2}, 3, loss), Error);
}

TEST(CrossEntropyOp, RejectsWrongTensors) {
  float memory[64] = {};
  const CrossEntropyArgs good{.logits = make_tensor(memory, shape(2, 8), DType::f32),
                              .targets = make_tensor(memory, shape(2), DType::i32),
                              .token_loss = make_tensor(memory, shape(2), DType::f32),
                              .scale = make_tensor(memory, shape(1), DType::f32),
                              .vocab = 8};
  const auto reject = [](const CrossEntropyArgs& args, std::vector<std::string> words) {
    expect_rejected([&](Ops& ops) { ops(args); }, words);
  };
  CrossEntropyArgs bad = good;
  bad.vocab = 9;
  reject(bad, {"cross_entropy", "vocab"});
  bad = good;
  bad.scale = {};
  reject(bad, {"cross_entropy: scale is none"});
  bad = good;
  bad.targets = bad.token_loss;
  reject(bad, {"cross_entropy: targets is f32[2]", "i32"});
  bad = good;
  bad.token_loss = bad.scale;
  reject(bad, {"cross_entropy: token_loss is f32[1]", "[2]"});
}

}  // namespace
}  // namespace tera::test
