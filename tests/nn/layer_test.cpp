// A layer with and without full recomputation in B.

#include <gtest/gtest.h>

#include <ostream>
#include <utility>
#include <vector>

#include "tera/nn/layer.h"
#include "tera/nn/recompute.h"
#include "tests/nn/block_checks.h"
#include "tests/nn/tiny_shape.h"

namespace tera::test {
namespace {

BlockSetup layer_of(const ModelShape& model) {
  const LayerSpec spec = make_spec(model, dropout_seed).layers[0];
  const bool recompute = model.recompute.full;
  return {.make = [spec, recompute](ParamStore& params) -> std::unique_ptr<Block> {
    auto layer = make_sublayers(spec.sublayers)(params);
    if (!recompute) return layer;
    return std::make_unique<Recompute>(std::move(layer));
  }};
}

struct Case {
  const char* name;
  ModelShape model;
  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
};

std::vector<Case> cases() {
  ModelShape dropout = tiny_gpt_shape();
  dropout.hidden_dropout = dropout.attention_dropout = 0.2f;
  ModelShape normed = tiny_shape();
  normed.qk_norm = true;
  normed.window = {4, 4};
  return {{"llama", tiny_shape()}, {"gpt", tiny_gpt_shape()}, {"gpt_dropout", dropout}, {"qk_norm_window", normed}};
}

class LayerBlock : public testing::TestWithParam<Case> {};

TEST_P(LayerBlock, HoldsWhatEveryBlockMust) { check_block(layer_of(GetParam().model)); }

TEST_P(LayerBlock, RecomputedHoldsItToo) {
  ModelShape model = GetParam().model;
  model.recompute.full = true;
  check_block(layer_of(model));
}

TEST_P(LayerBlock, RecomputeChangesNoBit) {
  const BlockSetup kept = layer_of(GetParam().model);
  for (const RecomputeShape& recompute :
       {RecomputeShape{.full = true}, RecomputeShape{.layernorm = true}, RecomputeShape{.activation = true},
        RecomputeShape{.full = true, .layernorm = true, .activation = true}}) {
    ModelShape model = GetParam().model;
    model.recompute = recompute;
    expect_same_results(kept, layer_of(model));
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, LayerBlock, testing::ValuesIn(cases()),
                         [](const auto& test) { return std::string(test.param.name); });

// Recompute is there to save memory: between F and B it keeps nothing at all.
TEST(LayerBlocks, RecomputedKeepsNothingBetweenForwardAndBackward) {
  ModelShape model = tiny_shape();
  BlockHarness kept(layer_of(model));
  model.recompute.full = true;
  BlockHarness remade(layer_of(model));
  EXPECT_EQ(remade.planned(Life::f_to_b), 0u);
  EXPECT_EQ(remade.planned(Life::f_to_w), 0u);
  EXPECT_GT(kept.planned(Life::f_to_b), 0u);
  EXPECT_EQ(remade.planned(Life::b_to_w), kept.planned(Life::b_to_w) + kept.planned(Life::f_to_w));
}

// T=18, H=24, N=4, G=2, D=8, F=40, counted by hand: a tensor kept longer than it is needed shows here.
TEST(LayerBlocks, KeepsWhatItNeedsAndNoLonger) {
  const BlockHarness layer(layer_of(tiny_shape()));
  const auto sum = [](std::initializer_list<std::size_t> widths) {  // bytes of one tensor per width
    std::size_t bytes = 0;
    for (const std::size_t width : widths) bytes += align_up(18 * width * sizeof(float), Arena::alignment);
    return bytes;
  };
  // Middle, two norms' rstd, q k v, log-sum-exp, gate and up.
  EXPECT_EQ(layer.planned(Life::f_to_b), sum({24, 1, 1, (4 + 2 + 2) * 8, 4, 2 * 40}));
  EXPECT_EQ(layer.planned(Life::f_to_w), sum({24, 4 * 8, 24, 40}));            // inputs of the four GEMMs
  EXPECT_EQ(layer.planned(Life::b_to_w), sum({24, (4 + 2 + 2) * 8, 2 * 40}));  // output gradients of the four GEMMs
}

TEST(LayerBlocks, SelectiveRecomputeKeepsLess) {
  ModelShape model = tiny_shape();
  const BlockHarness kept(layer_of(model));
  const std::size_t rows = 18;
  model.recompute.layernorm = true;
  const BlockHarness norm(layer_of(model));
  model.recompute = {.activation = true};
  const BlockHarness activation(layer_of(model));
  const auto padded = [](std::size_t floats) { return align_up(4 * floats, Arena::alignment); };
  EXPECT_EQ(norm.planned(Life::f_to_w), kept.planned(Life::f_to_w) - 2 * padded(rows * 24));
  EXPECT_EQ(activation.planned(Life::f_to_w), kept.planned(Life::f_to_w) - padded(rows * 40));
}

// Frozen parameters have no gradient; the others' do not change by a bit.
TEST(LayerBlocks, FrozenParametersAreLeftOut) {
  const std::vector<const char*> llama{"*norm*", "*proj.weight", "*weight"},
      gpt{"*ln_*", "*proj.weight", "*c_attn*", "*.bias", "*weight"};
  for (const auto& [model, patterns] : {std::pair{tiny_shape(), llama}, {tiny_gpt_shape(), gpt}}) {
    BlockSetup setup = layer_of(model);
    BlockHarness all(setup);
    all.execute(one_stage(2));
    for (const char* pattern : patterns) {
      setup.freeze = {pattern};
      BlockHarness some(setup);
      some.execute(one_stage(2));
      EXPECT_TRUE(some.peaks_as_planned());
      expect_same_bits(some.y(1), all.y(1), "y");
      expect_same_bits(some.dx(1), all.dx(1), "dx");
      for (const Param* param : some.params().by_name())
        if (param->grad)
          expect_same_bits(some.gradient(*param), all.gradient(all.params().find(param->spec.name)), pattern);
    }
  }
}

}  // namespace
}  // namespace tera::test
