#include <gtest/gtest.h>

#include "tests/nn/block_checks.h"
#include "tests/nn/tiny_shape.h"

namespace tera::test {
namespace {

BlockSetup setup_of(const ModelShape& model) {
  return {.make = make_sublayer(make_spec(model, dropout_seed).layers[0].sublayers[1])};
}

class MlpBlock : public testing::TestWithParam<std::tuple<Activation, bool>> {};

TEST_P(MlpBlock, HoldsWhatEveryBlockMust) {
  ModelShape model = tiny_shape();
  model.activation = std::get<0>(GetParam());
  if (std::get<1>(GetParam())) {
    model.linear_bias = true;
    model.hidden_dropout = 0.25f;
    model.norm = NormKind::layer_norm;
  }
  check_block(setup_of(model));
}

INSTANTIATE_TEST_SUITE_P(
    Activations, MlpBlock,
    testing::Combine(testing::Values(Activation::gelu, Activation::gelu_tanh, Activation::squared_relu,
                                     Activation::silu, Activation::swiglu, Activation::geglu, Activation::geglu_tanh),
                     testing::Bool()),
    [](const auto& test) {
      const char* plain = std::get<1>(test.param) ? "_bias_dropout" : "_plain";
      return std::string(name_of(std::get<0>(test.param))) + plain;
    });

TEST(MlpBlocks, SelectiveRecomputeChangesNoBit) {
  for (const bool dropout : {false, true}) {
    ModelShape model = tiny_shape();
    model.hidden_dropout = dropout ? 0.25f : 0;
    const BlockSetup kept = setup_of(model);
    for (const RecomputeShape& recompute : {RecomputeShape{.layernorm = true}, RecomputeShape{.activation = true},
                                            RecomputeShape{.layernorm = true, .activation = true}}) {
      model.recompute = recompute;
      const BlockSetup remade = setup_of(model);
      expect_same_results(kept, remade);
      check_split_backward(remade);
      check_memory(remade);
    }
  }
}

}  // namespace
}  // namespace tera::test
