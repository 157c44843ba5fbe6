// The attention block in every configuration.

#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>

#include "tera/nn/mixers/attention.h"
#include "tests/nn/block_checks.h"
#include "tests/nn/tiny_shape.h"

namespace tera::test {
namespace {

struct Case {
  const char* name;
  void (*change)(ModelShape& model);
  std::vector<std::int32_t> offsets = {};
  Mask mask = Mask::causal;
  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
};

BlockSetup setup_of(const Case& c) {
  ModelShape model = tiny_shape();
  c.change(model);
  SublayerSpec spec = make_spec(model, dropout_seed).layers[0].sublayers[0];
  spec.branches[0].branch.as<AttentionSpec>()->mask = c.mask;
  return {.make = make_sublayer(spec), .offsets = c.offsets};
}

const std::vector<Case> cases = {
    {"grouped", [](ModelShape&) {}},
    {"multi_head", [](ModelShape& m) { m.kv_heads = 4; }},
    {"multi_query", [](ModelShape& m) { m.kv_heads = 1; }},
    {"wide_heads", [](ModelShape& m) { m.head_dim = m.rope.rotary_dim = 10; }},  // N D is not H
    {"window",
     [](ModelShape& m) {
       m.window = {3, 3};
     }},
    {"full_mask", [](ModelShape&) {}, {}, Mask::full},
    {"no_rope", [](ModelShape& m) { m.positions = PositionKind::none; }},
    {"rope_interleaved", [](ModelShape& m) { m.rope.interleaved = true; }},
    {"rope_partial", [](ModelShape& m) { m.rope.rotary_dim = 4; }},
    {"rope_partial_interleaved",
     [](ModelShape& m) { m.rope = {.base = 100, .rotary_dim = 6, .interleaved = true, .scaling = {}}; }},
    {"qk_norm", [](ModelShape& m) { m.qk_norm = true; }},
    {"qk_norm_no_rope",
     [](ModelShape& m) {
       m.qk_norm = true;
       m.positions = PositionKind::none;
     }},
    {"layer_norm", [](ModelShape& m) { m.norm = NormKind::layer_norm; }},
    {"qk_layer_norm",
     [](ModelShape& m) {
       m.norm = NormKind::layer_norm;
       m.qk_norm = true;
     }},
    {"qkv_bias", [](ModelShape& m) { m.qkv_bias = true; }},
    {"all_biases", [](ModelShape& m) { m.qkv_bias = m.linear_bias = true; }},
    {"hidden_dropout",
     [](ModelShape& m) {
       m.hidden_dropout = 0.3f;
       m.linear_bias = true;
     }},
    {"attention_dropout", [](ModelShape& m) { m.attention_dropout = 0.3f; }},
    {"both_dropouts",
     [](ModelShape& m) {
       m.hidden_dropout = 0.2f;
       m.attention_dropout = 0.2f;
       m.qk_norm = true;
     }},
    {"recomputed_norm", [](ModelShape& m) { m.recompute.layernorm = true; }},
    {"documents", [](ModelShape&) {}, {0, 4, 5, 14, 18}},
    {"documents_window_dropout",
     [](ModelShape& m) {
       m.window = {3, 3};
       m.attention_dropout = 0.2f;
     },
     {0, 7, 18}},
    {"gpt", [](ModelShape& m) { m = tiny_gpt_shape(); }},
};

class AttentionBlock : public testing::TestWithParam<Case> {};

TEST_P(AttentionBlock, HoldsWhatEveryBlockMust) { check_block(setup_of(GetParam())); }

INSTANTIATE_TEST_SUITE_P(Cases, AttentionBlock, testing::ValuesIn(cases),
                         [](const auto& test) { return std::string(test.param.name); });

const Case& case_of(const std::string& name) {
  return *std::find_if(cases.begin(), cases.end(), [&](const Case& c) { return c.name == name; });
}

TEST(AttentionBlocks, RecomputedNormChangesNoBit) {
  expect_same_results(setup_of(case_of("grouped")), setup_of(case_of("recomputed_norm")));
}

// Offsets that cut where the sequences end say the same as no offsets.
TEST(AttentionBlocks, DocumentsOfEqualLengthAreSequences) {
  BlockSetup documents = setup_of(case_of("grouped"));
  documents.offsets = {0, 9, 18};
  expect_same_results(setup_of(case_of("grouped")), documents);
}

// The rows of a document do not see those of another: change one document, and the others' outputs keep their bits.
TEST(AttentionBlocks, DocumentsDoNotSeeEachOther) {
  const BlockSetup setup = setup_of(case_of("documents"));
  BlockHarness block(setup);
  block.execute(one_stage(2));
  const std::vector<float> before = block.y(0);
  block.reset();
  std::vector<float> x = block.x(0);
  for (std::size_t i = 5 * 24; i < 14 * 24; ++i) x[i] += 1;  // the third document
  block.set_x(x);
  block.forward_only();
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (i < 5 * 24 || i >= 14 * 24)
      ASSERT_EQ(block.y(0)[i], before[i]) << i;
    else
      ASSERT_NE(block.y(0)[i], before[i]) << i;
  }
}

}  // namespace
}  // namespace tera::test
