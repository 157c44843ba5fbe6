#include "tests/nn/block_checks.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "tera/nn/context_parallel.h"
#include "tera/nn/expert_parallel.h"
#include "tera/nn/layer.h"
#include "tests/support/fill.h"

namespace tera::test {
namespace {

// Four points, so that the error of the formula falls with the fourth power of the step, while the noise of an fp32
// forward grows with its inverse. Largest error over all cases, of the gradient's norm, by step: 2^-6 2e-3, 2^-7 8e-4,
// 2^-8 2.6e-4, 2^-9 2.9e-4, 2^-10 5.6e-4; half of the cases stay below 1.2e-5 at 2^-8.
constexpr double step = 0x1p-8;
// Tolerance as a fraction of the gradient's norm. One wrong element of a gradient of n moves a random directional
// derivative by about 1/sqrt(n) of the norm, 2 % for the largest here.
constexpr double limit = 1e-3;

double norm_of(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return std::sqrt(sum);
}

std::vector<float> moved(const std::vector<float>& from, const Values& direction, double by) {
  std::vector<float> to(from.size());
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = static_cast<float>(from[i] + by * direction[i]);
  return to;
}

// The derivative of the loss along a random direction of one tensor, measured and from the gradient.
template <class Set>
void compare_along(BlockHarness& block, const std::vector<float>& at, const std::vector<float>& gradient,
                   const Set& set, const std::string& what) {
  const Values direction = normal_values(shape(static_cast<std::int64_t>(at.size())), rng_stream(5, what).seed);
  const auto loss_at = [&](double by) {
    set(moved(at, direction, by));
    return block.loss_of_forward();
  };
  const double measured =
      (8 * (loss_at(step) - loss_at(-step)) - (loss_at(2 * step) - loss_at(-2 * step))) / (12 * step);
  set(at);
  double expected = 0;
  for (std::size_t i = 0; i < gradient.size(); ++i) expected += gradient[i] * direction[i];
  EXPECT_GT(norm_of(gradient), 0) << what << " has no gradient";
  EXPECT_NEAR(measured, expected, limit * norm_of(gradient)) << what;
}

// Parameters that have gradients.
std::vector<const Param*> trained(const BlockHarness& block) {
  std::vector<const Param*> params;
  for (const Param* param : block.params().by_name())
    if (param->spec.trainable) params.push_back(param);
  return params;
}

Schedule of(std::initializer_list<Action> actions) { return actions; }

}  // namespace

void check_gradients(const BlockSetup& setup) {
  BlockHarness block(setup);
  block.execute(of({{Act::F, 0}, {Act::BW, 0}}));
  std::vector<std::vector<float>> gradients;
  for (const Param* param : trained(block)) gradients.push_back(block.gradient(*param));
  const std::vector<float> dx = setup.has_x ? block.dx(0) : std::vector<float>{};
  block.reset();
  if (setup.has_x)
    compare_along(
        block, block.x(0), dx, [&](const std::vector<float>& values) { block.set_x(values); }, "x");
  std::size_t i = 0;
  for (const Param* param : trained(block))
    compare_along(
        block, block.value(*param), gradients[i++],
        [&](const std::vector<float>& values) { block.set_value(*param, values); }, param->spec.name);
}

void check_split_backward(const BlockSetup& setup) {
  using enum Act;
  BlockHarness block(setup);
  block.execute(one_stage(2));
  const std::vector<float> together = block.everything();
  for (const Schedule& apart :
       {of({{F, 0}, {B, 0}, {W, 0}, {F, 1}, {B, 1}, {W, 1}}), of({{F, 0}, {F, 1}, {B, 0}, {B, 1}, {W, 0}, {W, 1}}),
        of({{F, 0}, {B, 0}, {F, 1}, {B, 1}, {W, 0}, {W, 1}}), of({{F, 0}, {F, 1}, {B, 0}, {W, 0}, {BW, 1}}),
        of({{F, 0}, {F, 1}, {BW, 0}, {BW, 1}})}) {
    block.execute(apart);
    expect_same_bits(block.everything(), together, "a schedule");
  }
}

void check_accumulation(const BlockSetup& setup) {
  BlockHarness block(setup);
  std::vector<std::vector<float>> alone;
  for (const int microbatch : {0, 1}) {
    block.execute(of({{Act::F, microbatch}, {Act::BW, microbatch}}));
    for (const Param* param : trained(block)) alone.push_back(block.gradient(*param));
  }
  block.execute(one_stage(2));
  const std::size_t params = trained(block).size();
  for (std::size_t i = 0; i < params; ++i) {
    const Param& param = *trained(block)[i];
    const std::vector<float> both = block.gradient(param);
    double difference = 0;
    for (std::size_t j = 0; j < both.size(); ++j)
      difference = std::max(difference, std::abs(static_cast<double>(both[j]) - (alone[i][j] + alone[params + i][j])));
    EXPECT_LE(difference, 1e-5 * norm_of(both)) << param.spec.name;  // sums in another order
  }
}

void check_memory(const BlockSetup& setup) {
  BlockHarness block(setup);
  block.execute(one_stage(2));
  EXPECT_TRUE(block.peaks_as_planned());
  EXPECT_TRUE(block.stashes_are_empty());
}

void check_threads(const BlockSetup& setup) {
  BlockSetup threaded = setup;
  BlockHarness one(setup);
  one.execute(one_stage(2));
  for (const int threads : {2, 3}) {
    threaded.threads = threads;
    BlockHarness several(threaded);
    several.execute(one_stage(2));
    expect_same_bits(several.everything(), one.everything(), "threads");
  }
}

void check_rounded(const BlockSetup& setup, DType compute) {
  BlockSetup rounded = setup;
  rounded.compute = compute;
  BlockHarness exact(setup), coarse(rounded);
  // Start both from the rounded weights, so that only the rounding of activations differs.
  for (std::size_t i = 0; i < exact.params().by_name().size(); ++i)
    exact.set_value(*exact.params().by_name()[i], coarse.value(*coarse.params().by_name()[i]));
  exact.execute(one_stage(2));
  coarse.execute(one_stage(2));
  EXPECT_TRUE(coarse.peaks_as_planned());
  // A value is rounded about ten times on its way, each by up to 2^-9 of itself in bf16, by 2^-12 in fp16.
  const double tolerance = compute == DType::bf16 ? 0.03 : 0.004;
  const auto close = [&](const std::vector<float>& got, const std::vector<float>& want, const std::string& what) {
    std::vector<float> difference(want.size());
    for (std::size_t i = 0; i < want.size(); ++i) difference[i] = got[i] - want[i];
    EXPECT_LT(norm_of(difference), tolerance * norm_of(want)) << what << " in " << name_of(compute);
  };
  for (int i = 0; i < 2; ++i) {
    if (setup.has_x) close(coarse.dx(i), exact.dx(i), "dx");
    if (setup.has_y) close(coarse.y(i), exact.y(i), "y");
    if (!setup.has_y) close(coarse.token_loss(i), exact.token_loss(i), "token losses");
  }
  for (std::size_t i = 0; i < trained(exact).size(); ++i)
    close(coarse.gradient(*trained(coarse)[i]), exact.gradient(*trained(exact)[i]), trained(exact)[i]->spec.name);
}

void expect_same_bits(const std::vector<float>& got, const std::vector<float>& want, const char* what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_FALSE(std::isnan(got[i])) << what << ": element " << i << " came from memory that was given back";
    ASSERT_EQ(std::bit_cast<std::uint32_t>(got[i]), std::bit_cast<std::uint32_t>(want[i]))
        << what << ": element " << i << " of " << got.size() << " is " << got[i] << ", not " << want[i];
  }
}

void expect_same_results(const BlockSetup& setup, const BlockSetup& other) {
  BlockHarness one(setup), two(other);
  one.execute(one_stage(2));
  two.execute(one_stage(2));
  expect_same_bits(two.everything(), one.everything(), "the other form");
}

MakeBlock make_sublayer(const SublayerSpec& spec) {
  return [spec](ParamStore& params) {
    const TensorParallel tp;
    const ExpertParallel experts;
    const ContextParallel cp;
    return std::make_unique<Sublayer>(spec, BuildContext{params, tp, experts, cp});
  };
}

MakeBlock make_sublayers(const std::vector<SublayerSpec>& specs) {
  return [specs](ParamStore& params) {
    std::vector<std::unique_ptr<Block>> links;
    for (const SublayerSpec& spec : specs) links.push_back(make_sublayer(spec)(params));
    return std::make_unique<Chain>("layer", std::move(links));
  };
}

}  // namespace tera::test
