// The input block of a multi-token prediction (MTP) layer. Complete MTP layers: tests/end_to_end/mtp_test.cpp.

#include <gtest/gtest.h>

#include <cmath>

#include "tests/nn/block_checks.h"
#include "tests/nn/tiny_shape.h"

namespace tera::test {
namespace {

ModelShape shape_with_mtp() {
  ModelShape model = tiny_shape();
  model.mtp_layers = 1;
  return model;
}

BlockSetup setup_of(const ModelShape& model) {
  const MtpInputSpec spec = make_spec(model, dropout_seed).mtp[0].input;
  return {.make = [spec](ParamStore& params) { return std::make_unique<MtpInput>(params, spec); }};
}

TEST(MtpInputBlock, HoldsWhatEveryBlockMust) {
  check_block(setup_of(shape_with_mtp()));
  ModelShape other = shape_with_mtp();
  other.norm = NormKind::layer_norm;
  other.linear_bias = true;  // the projection has none all the same
  other.hidden_dropout = 0.2f;
  check_block(setup_of(other));
}

TEST(MtpInputBlock, FrozenParametersAreLeftOut) {
  BlockSetup setup = setup_of(shape_with_mtp());
  BlockHarness all(setup);
  all.execute(one_stage(2));
  for (const char* pattern : {"*norm*", "*eh_proj*", "*embed_tokens*"}) {
    setup.freeze = {pattern};
    BlockHarness some(setup);
    some.execute(one_stage(2));
    EXPECT_TRUE(some.peaks_as_planned());
    expect_same_bits(some.dx(1), all.dx(1), "dx");
    for (const Param* param : some.params().by_name())
      if (param->grad)
        expect_same_bits(some.gradient(*param), all.gradient(all.params().find(param->spec.name)), pattern);
  }
}

// The definition in double, from the same weights: the embedding's half of the projection comes first, each half is
// normed by itself.
TEST(MtpInputBlock, ForwardIsTheDefinition) {
  constexpr std::size_t hidden = 24, rows = 18;
  const ModelShape model = shape_with_mtp();
  BlockHarness block(setup_of(model));
  block.reset();
  const auto value = [&](const char* name) { return block.value(block.params().find(name)); };
  const auto table = value("model.embed_tokens.weight"), embedding_norm = value("model.layers.2.enorm.weight"),
             hidden_norm = value("model.layers.2.hnorm.weight"), project = value("model.layers.2.eh_proj.weight");
  const auto x = block.x(0);
  const auto tokens = block.tokens(0);
  ASSERT_EQ(project.size(), hidden * 2 * hidden);
  block.execute(one_stage(2));
  const auto normed = [&](const float* row, const std::vector<float>& weight) {
    double squares = 0;
    for (std::size_t i = 0; i < hidden; ++i) squares += static_cast<double>(row[i]) * row[i];
    std::vector<double> out;
    for (std::size_t i = 0; i < hidden; ++i)
      out.push_back(row[i] / std::sqrt(squares / hidden + static_cast<double>(model.norm_eps)) * weight[i]);
    return out;
  };
  for (std::size_t row = 0; row < rows; ++row) {
    const auto embedded = normed(&table[static_cast<std::size_t>(tokens[row]) * hidden], embedding_norm),
               known = normed(&x[row * hidden], hidden_norm);
    for (std::size_t out = 0; out < hidden; ++out) {
      double want = 0;
      for (std::size_t i = 0; i < hidden; ++i)
        want += embedded[i] * project[out * 2 * hidden + i] + known[i] * project[out * 2 * hidden + hidden + i];
      ASSERT_NEAR(block.y(0)[row * hidden + out], want, 1e-5) << "row " << row;
    }
  }
}

}  // namespace
}  // namespace tera::test
