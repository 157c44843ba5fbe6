#include <gtest/gtest.h>

#include "tests/nn/block_checks.h"
#include "tests/nn/tiny_shape.h"

namespace tera::test {
namespace {

BlockSetup setup_of(bool positions, float dropout, const std::vector<std::int32_t>& offsets = {}) {
  ModelShape model = positions ? tiny_gpt_shape() : tiny_shape();
  model.hidden_dropout = dropout;
  const EmbeddingSpec spec = make_spec(model, dropout_seed).embedding;
  return {.make = [spec](ParamStore& params) { return std::make_unique<Embedding>(params, spec); },
          .has_x = false,
          .offsets = offsets};
}

TEST(EmbeddingBlock, HoldsWhatEveryBlockMust) {
  for (const bool positions : {false, true})
    for (const float dropout : {0.0f, 0.3f}) check_block(setup_of(positions, dropout));
}

// Positions begin again in each document, and so do their gradients.
TEST(EmbeddingBlock, HoldsItWithDocuments) { check_block(setup_of(true, 0, {0, 4, 5, 14, 18})); }

TEST(EmbeddingBlock, TakesRowsOfItsTables) {
  BlockHarness block(setup_of(true, 0));
  block.execute(one_stage(2));
  const auto table = block.value(block.params().find("transformer.wte.weight"));
  const auto positions = block.value(block.params().find("transformer.wpe.weight"));
  const auto tokens = block.tokens(0);
  for (std::size_t row = 0; row < 18; ++row)
    for (std::size_t i = 0; i < 24; ++i)
      ASSERT_EQ(block.y(0)[row * 24 + i],
                table[static_cast<std::size_t>(tokens[row]) * 24 + i] + positions[row % 9 * 24 + i]);
}

// Rows of the embedding table that no token names, padding among them, get no gradient.
TEST(EmbeddingBlock, OtherRowsGetNoGradient) {
  BlockHarness block(setup_of(false, 0));
  block.execute(one_stage(2));
  const auto gradient = block.gradient(block.params().find("model.embed_tokens.weight"));
  std::vector<bool> named(32, false);
  for (const int microbatch : {0, 1})
    for (const std::int32_t token : block.tokens(microbatch)) named[static_cast<std::size_t>(token)] = true;
  for (std::size_t row = 0; row < 32; ++row)
    for (std::size_t i = 0; i < 24; ++i) ASSERT_EQ(gradient[row * 24 + i] != 0, named[row]) << row;
}

TEST(EmbeddingBlock, DropoutDropsItsFractionAndScalesTheRest) {
  BlockHarness kept(setup_of(false, 0)), dropped(setup_of(false, 0.25f));
  kept.execute(one_stage(2));
  dropped.execute(one_stage(2));
  int zeros = 0;
  for (std::size_t i = 0; i < kept.y(0).size(); ++i) {
    zeros += dropped.y(0)[i] == 0 ? 1 : 0;
    if (dropped.y(0)[i] != 0) {
      ASSERT_FLOAT_EQ(dropped.y(0)[i], kept.y(0)[i] / 0.75f);
    }
  }
  // 432 draws of 1/4: 108 expected, standard deviation 9.
  EXPECT_NEAR(zeros, 108, 36);
  EXPECT_NE(dropped.y(0), dropped.y(1));  // microbatches draw apart
}

}  // namespace
}  // namespace tera::test
