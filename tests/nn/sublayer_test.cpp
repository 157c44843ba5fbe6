// Sublayers in every arrangement of norms and branches, and their forward by what single branches give.

#include "tera/nn/sublayer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <ostream>

#include "tera/nn/ffn/mlp.h"
#include "tera/nn/recompute.h"
#include "tests/nn/block_checks.h"
#include "tests/nn/tiny_shape.h"

namespace tera::test {
namespace {

constexpr std::size_t hidden = 24;

SublayerSpec part_of(std::size_t index) { return make_spec(tiny_shape(), dropout_seed).layers[0].sublayers[index]; }
NormSpec norm_of(const char* name, NormKind kind = NormKind::rms_norm) {
  return {.name = name, .size = hidden, .kind = kind};
}

// Attention and feed-forward beside each other, as in GPT-J.
SublayerSpec parallel() {
  SublayerSpec spec = part_of(0);
  spec.branches.push_back(part_of(1).branches[0]);
  return spec;
}

// As in GPT-NeoX: the feed-forward's norm sees x as well.
SublayerSpec norm_each() {
  SublayerSpec spec = parallel();
  spec.branches[1].norm = norm_of("norm_2", NormKind::layer_norm);
  return spec;
}

SublayerSpec three_branches() {
  SublayerSpec spec = norm_each();
  BranchUse third = part_of(1).branches[0];
  third.name += "_2";
  auto& mlp = *third.branch.as<MlpSpec>();
  mlp.up.name = "up_2";
  mlp.up.out = {{.name = "gate_2", .rows = 40}, {.name = "up_2", .rows = 40}};
  mlp.down.name = "down_2";
  mlp.down.out = {{.name = "down_2", .rows = hidden}};
  spec.branches.push_back(third);
  return spec;
}

// A norm before and behind the branch, as in Gemma 2.
SublayerSpec sandwich(std::size_t index) {
  SublayerSpec spec = part_of(index);
  spec.post_norm = norm_of("post_norm");
  return spec;
}

// A norm behind the sum alone, as in BERT.
SublayerSpec post_norm(std::size_t index) {
  SublayerSpec spec = part_of(index);
  spec.norm.reset();
  spec.post_norm = norm_of("post_norm", NormKind::layer_norm);
  spec.post_at = PostNorm::of_sum;
  return spec;
}

SublayerSpec no_norm() {
  SublayerSpec spec = parallel();
  spec.norm.reset();
  return spec;
}

SublayerSpec parallel_post_norm() {
  SublayerSpec spec = parallel();
  spec.post_norm = norm_of("post_norm");
  spec.post_at = PostNorm::of_sum;
  return spec;
}

// Experts, of which each row chooses all: finite differences see no jump.
BranchUse experts() {
  ModelShape model = tiny_shape();
  model.family = &family_named("qwen3_moe");
  model.moe = MoeShape{.experts = 3, .ffn = 16, .layers = {true, true}, .router = {.topk = 3}, .losses = {}};
  return make_spec(model, dropout_seed).layers[0].sublayers[1].branches[0];
}

SublayerSpec attention_and_experts() {
  SublayerSpec spec = part_of(0);
  spec.branches.push_back(experts());
  return spec;
}

SublayerSpec experts_and_attention() {
  SublayerSpec spec = part_of(0);
  spec.branches.insert(spec.branches.begin(), experts());
  spec.branches[1].norm = norm_of("norm_2");
  return spec;
}

SublayerSpec with_experts(SublayerSpec spec) {
  spec.branches = {experts()};
  return spec;
}

struct Case {
  const char* name;
  SublayerSpec spec;
  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
};

std::vector<Case> cases() {
  return {{"parallel", parallel()},
          {"norm_each", norm_each()},
          {"three_branches", three_branches()},
          {"sandwich_attention", sandwich(0)},
          {"sandwich_mlp", sandwich(1)},
          {"post_norm_attention", post_norm(0)},
          {"post_norm_mlp", post_norm(1)},
          {"no_norm", no_norm()},
          {"parallel_post_norm", parallel_post_norm()},
          {"attention_and_experts", attention_and_experts()},
          {"experts_and_attention", experts_and_attention()},
          {"sandwich_experts", with_experts(sandwich(1))},
          {"post_norm_experts", with_experts(post_norm(1))}};
}

class SublayerBlock : public testing::TestWithParam<Case> {};

TEST_P(SublayerBlock, HoldsWhatEveryBlockMust) { check_block({.make = make_sublayer(GetParam().spec)}); }

TEST_P(SublayerBlock, HoldsItWithDropout) {
  SublayerSpec spec = GetParam().spec;
  spec.dropout = 0.25f;
  spec.seed = dropout_seed;
  check_block({.make = make_sublayer(spec)});
}

TEST_P(SublayerBlock, RecomputedNormChangesNoBit) {
  SublayerSpec spec = GetParam().spec;
  const BlockSetup kept{.make = make_sublayer(spec)};
  spec.recompute_norm = true;
  const BlockSetup recomputed{.make = make_sublayer(spec)};
  expect_same_results(kept, recomputed);
  check_split_backward(recomputed);
  check_memory(recomputed);
}

TEST_P(SublayerBlock, RecomputedWholeItChangesNoBit) {
  const MakeBlock make = make_sublayer(GetParam().spec);
  const BlockSetup recomputed{.make = [make](ParamStore& params) { return std::make_unique<Recompute>(make(params)); }};
  expect_same_results({.make = make}, recomputed);
  check_split_backward(recomputed);
  check_memory(recomputed);
}

INSTANTIATE_TEST_SUITE_P(Cases, SublayerBlock, testing::ValuesIn(cases()),
                         [](const auto& test) { return std::string(test.param.name); });

// What sublayers of one branch without a post-norm give, with the parameters of another block.
std::vector<double> y_of(const SublayerSpec& spec, BlockHarness& like) {
  BlockHarness block({.make = make_sublayer(spec)});
  for (const Param* param : block.params().by_name())
    block.set_value(*param, like.value(like.params().find(param->spec.name)));
  block.reset();
  block.forward_only();
  return {block.y(0).begin(), block.y(0).end()};
}

// What the first branch of a sublayer adds to x, without a post-norm.
std::vector<double> added_by(SublayerSpec spec, std::size_t branch, BlockHarness& like) {
  const BranchUse use = spec.branches[branch];
  if (use.norm) spec.norm = use.norm;
  spec.branches = {{.name = use.name, .branch = use.branch, .norm = {}}};
  spec.post_norm.reset();
  std::vector<double> y = y_of(spec, like);
  const std::vector<float> x = like.x(0);
  for (std::size_t i = 0; i < y.size(); ++i) y[i] -= x[i];
  return y;
}

void rms_norm(std::vector<double>& rows, const std::vector<float>& weight) {
  for (std::size_t row = 0; row < rows.size(); row += hidden) {
    double squares = 0;
    for (std::size_t i = row; i < row + hidden; ++i) squares += rows[i] * rows[i];
    for (std::size_t i = row; i < row + hidden; ++i) rows[i] *= weight[i - row] / std::sqrt(squares / hidden + 1e-5);
  }
}

void layer_norm(std::vector<double>& rows, const std::vector<float>& weight, const std::vector<float>& bias) {
  for (std::size_t row = 0; row < rows.size(); row += hidden) {
    double sum = 0, squares = 0;
    for (std::size_t i = row; i < row + hidden; ++i) sum += rows[i];
    for (std::size_t i = row; i < row + hidden; ++i) squares += std::pow(rows[i] - sum / hidden, 2);
    for (std::size_t i = row; i < row + hidden; ++i)
      rows[i] = (rows[i] - sum / hidden) / std::sqrt(squares / hidden + 1e-5) * weight[i - row] + bias[i - row];
  }
}

TEST_P(SublayerBlock, IsWhatItsDefinitionSays) {
  const SublayerSpec& spec = GetParam().spec;
  BlockHarness block({.make = make_sublayer(spec)});
  block.reset();
  block.forward_only();
  const std::vector<float> x = block.x(0);
  std::vector<double> want(x.begin(), x.end());
  const auto value = [&](const std::string& name) { return block.value(block.params().find(name)); };
  for (std::size_t i = 0; i < spec.branches.size(); ++i) {
    std::vector<double> added = added_by(spec, i, block);
    if (spec.post_norm && spec.post_at == PostNorm::of_branch) rms_norm(added, value("post_norm.weight"));
    for (std::size_t j = 0; j < want.size(); ++j) want[j] += added[j];
  }
  if (spec.post_norm && spec.post_at == PostNorm::of_sum) {
    if (spec.post_norm->kind == NormKind::layer_norm)
      layer_norm(want, value("post_norm.weight"), value("post_norm.bias"));
    else
      rms_norm(want, value("post_norm.weight"));
  }
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(block.y(0)[i], want[i], 3e-5) << i;
}

TEST(Sublayer, ANormBehindEachOfSeveralBranchesIsRefused) {
  SublayerSpec spec = parallel();
  spec.post_norm = norm_of("post_norm");
  EXPECT_THROW(BlockHarness({.make = make_sublayer(spec)}), Error);
}

}  // namespace
}  // namespace tera::test
