#include <gtest/gtest.h>

#include <cmath>

#include "tests/nn/block_checks.h"
#include "tests/nn/tiny_shape.h"

namespace tera::test {
namespace {

BlockSetup setup_of(const ModelShape& model) {
  const ModelSpec spec = make_spec(model, dropout_seed);
  return {.make =
              [spec](ParamStore& params) {
                Param* tied = nullptr;
                if (spec.tied)
                  tied = &params.add(VocabularyTable{
                      .name = "table",
                      .vocab = spec.head.vocab,
                      .padded_vocab = spec.head.padded_vocab,
                      .hidden = spec.head.hidden,
                      .init = {}}.spec({}));
                return std::make_unique<Head>(params, spec.head, tied);
              },
          .hidden = model.hidden,
          .has_y = false,
          .vocab = model.vocab};
}

TEST(HeadBlock, HoldsWhatEveryBlockMust) {
  for (const bool tied : {false, true})
    for (const bool pad_in_softmax : {false, true}) {
      ModelShape model = tiny_shape();
      model.tied_embeddings = tied;
      model.pad_vocab_in_softmax = pad_in_softmax;
      check_block(setup_of(model));
    }
  check_block(setup_of(tiny_gpt_shape()));
}

// Where MTP layers follow, their gradient of the normed x comes back as dy.
TEST(HeadBlock, HoldsItWithAYToo) {
  for (const ModelShape& model : {tiny_shape(), tiny_gpt_shape()}) {
    BlockSetup setup = setup_of(model);
    setup.has_y = setup.has_loss = true;
    check_block(setup);
  }
}

// Losses by the definition, in double, from the same weights: which columns count, which rows.
TEST(HeadBlock, LossIsTheDefinition) {
  for (const bool pad_in_softmax : {false, true}) {
    ModelShape model = tiny_shape();
    model.pad_vocab_in_softmax = pad_in_softmax;
    BlockHarness block(setup_of(model));
    block.reset();
    const auto x = block.x(0), weight = block.value(block.params().find("model.norm.weight"));
    const auto table = block.value(block.params().find("lm_head.weight"));
    block.execute(one_stage(2));
    const auto losses = block.token_loss(0);
    const auto targets = block.targets(0);
    for (std::size_t row = 0; row < 18; ++row) {
      double squares = 0;
      for (std::size_t i = 0; i < 24; ++i) squares += static_cast<double>(x[row * 24 + i]) * x[row * 24 + i];
      const double rstd = 1 / std::sqrt(squares / 24 + static_cast<double>(model.norm_eps));
      double sum = 0, picked = 0;
      for (std::size_t column = 0; column < (pad_in_softmax ? 32 : 29); ++column) {
        double logit = 0;
        for (std::size_t i = 0; i < 24; ++i) logit += x[row * 24 + i] * rstd * weight[i] * table[column * 24 + i];
        sum += std::exp(logit);
        if (targets[row] == static_cast<std::int32_t>(column)) picked = logit;
      }
      const double want = targets[row] < 0 ? 0 : std::log(sum) - picked;
      ASSERT_NEAR(losses[row], want, 1e-5) << "row " << row;  // losses are near 3; fp32 keeps seven digits
    }
  }
}

TEST(HeadBlock, PaddingRowsGetNoGradientOutsideTheSoftmax) {
  for (const bool pad_in_softmax : {false, true}) {
    ModelShape model = tiny_shape();
    model.pad_vocab_in_softmax = pad_in_softmax;
    BlockHarness block(setup_of(model));
    block.execute(one_stage(2));
    const auto gradient = block.gradient(block.params().find("lm_head.weight"));
    for (std::size_t i = 29 * 24; i < 32 * 24; ++i) ASSERT_EQ(gradient[i] != 0, pad_in_softmax);
    for (std::size_t i = 0; i < 29 * 24; ++i) ASSERT_NE(gradient[i], 0);
  }
}

TEST(HeadBlock, MaskedRowsHaveNoLossAndNoGradient) {
  BlockHarness block(setup_of(tiny_shape()));
  block.execute(one_stage(2));
  const auto targets = block.targets(0);
  const auto losses = block.token_loss(0), dx = block.dx(0);
  for (std::size_t row = 0; row < targets.size(); ++row) {
    ASSERT_EQ(losses[row] == 0, targets[row] < 0);
    for (std::size_t i = 0; i < 24; ++i) ASSERT_EQ(dx[row * 24 + i] == 0, targets[row] < 0);
  }
}

// A vocabulary so large that logits are made 64 rows at a time. Six rows more are a second chunk: the first 64 must
// come out as if they were alone.
TEST(HeadBlock, SeveralChunksOfRowsAreOne) {
  ModelShape model = tiny_shape();
  model.hidden = 4;
  model.vocab = 131100;
  model.padded_vocab = 131200;
  ASSERT_EQ(Head::chunk_rows(70, model.padded_vocab, 1 << 24), 64);
  BlockSetup both = setup_of(model), first = setup_of(model);
  both.batch = first.batch = 1;
  both.seq = 70;
  first.seq = 64;
  BlockHarness two_chunks(both), one_chunk(first);
  const Schedule once{{Act::F, 0}, {Act::BW, 0}};
  two_chunks.execute(once);
  one_chunk.execute(once);
  EXPECT_TRUE(two_chunks.scratch_as_planned());
  const auto head_of = [](std::vector<float> values, std::size_t size) {
    values.resize(size);
    return values;
  };
  expect_same_bits(head_of(two_chunks.token_loss(0), 64), one_chunk.token_loss(0), "losses");
  expect_same_bits(head_of(two_chunks.dx(0), 64 * 4), one_chunk.dx(0), "dx");
  for (const float loss : two_chunks.token_loss(0)) ASSERT_LT(loss, 20);  // the last six were computed too

  // The gradient of the table is that of the first 64 rows, and of six more: softmax columns sum to zero in each.
  const auto table = two_chunks.gradient(two_chunks.params().find("lm_head.weight"));
  const auto part = one_chunk.gradient(one_chunk.params().find("lm_head.weight"));
  EXPECT_NE(table, part);
  for (std::size_t i = 0; i < 4; ++i) {
    double sum = 0, largest = 0;
    for (std::size_t row = 0; row < 131100; ++row) {
      sum += table[row * 4 + i];
      largest = std::max(largest, std::abs(static_cast<double>(table[row * 4 + i])));
    }
    EXPECT_NEAR(sum, 0, 1e-4 * largest);
  }
}

}  // namespace
}  // namespace tera::test
