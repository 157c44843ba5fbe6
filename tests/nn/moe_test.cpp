#include "tera/nn/moe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "tests/nn/block_checks.h"

namespace tera::test {
namespace {

constexpr std::int64_t hidden = 24, ffn = 16;

MoeSpec moe_spec(std::int64_t experts, std::int64_t topk) {
  MoeSpec spec;
  spec.name = "layers.0.mlp";
  spec.norm = {.name = "layers.0.norm", .size = hidden};
  spec.router = {.name = "layers.0.mlp.gate", .hidden = hidden, .experts = experts, .rule = {.topk = topk}};
  spec.experts = {.name = "layers.0.mlp.experts",
                  .prefix = "layers.0.mlp.experts.",
                  .up = {".gate_proj", ".up_proj"},
                  .down = ".down_proj",
                  .experts = experts,
                  .hidden = hidden,
                  .ffn = ffn};
  spec.seed = 3;
  return spec;
}

SharedExpertSpec shared_expert() {
  const std::string at = "layers.0.mlp.shared_expert.";
  return {
      .up = {.name = at + "gate_up_proj",
             .in = hidden,
             .out = {{.name = at + "gate_proj", .rows = 12}, {.name = at + "up_proj", .rows = 12}},
             .split = Split::out},
      .down = {
          .name = at + "down_proj", .in = 12, .out = {{.name = at + "down_proj", .rows = hidden}}, .split = Split::in}};
}

BlockSetup setup_of(const MoeSpec& spec) {
  return {.make = [spec](ParamStore& params) { return std::make_unique<Moe>(params, spec); }};
}

TEST(MoeBlock, HoldsWhatEveryBlockMust) { check_block(setup_of(moe_spec(5, 2))); }

TEST(MoeBlock, AllExpertsOfARow) { check_block(setup_of(moe_spec(3, 3))); }

TEST(MoeBlock, SharedExpertAndDropout) {
  MoeSpec spec = moe_spec(3, 3);  // whatever the logits, the same choice
  spec.shared = shared_expert();
  spec.hidden_dropout = 0.25f;
  check_block(setup_of(spec));
}

TEST(MoeBlock, GateOfTheSharedExpert) {
  MoeSpec spec = moe_spec(3, 3);
  spec.shared = shared_expert();
  spec.shared->gate = "layers.0.mlp.shared_expert_gate";
  check_block(setup_of(spec));
  spec.hidden_dropout = 0.25f;
  spec.recompute_norm = spec.recompute_activation = true;
  check_block(setup_of(spec));
}

TEST(MoeBlock, SigmoidScoresOfGroups) {
  MoeSpec spec = moe_spec(6, 2);
  spec.router.rule = {.score = ScoreFunction::sigmoid, .topk = 2, .scale = 2.5f, .groups = 3, .group_topk = 2};
  check_block(setup_of(spec));
}

TEST(MoeBlock, SelectiveRecomputeChangesNoBit) {
  MoeSpec spec = moe_spec(5, 2);
  spec.shared = shared_expert();
  const BlockSetup kept = setup_of(spec);
  for (const auto& [norm, activation] : {std::pair{true, false}, {false, true}, {true, true}}) {
    spec.recompute_norm = norm;
    spec.recompute_activation = activation;
    const BlockSetup remade = setup_of(spec);
    expect_same_results(kept, remade);
    check_split_backward(remade);
    check_memory(remade);
  }
}

TEST(MoeBlock, FrozenExpertsStillPassGradientsOn) {
  const MoeSpec spec = moe_spec(5, 2);
  BlockSetup frozen = setup_of(spec);
  frozen.freeze = {"*.experts.*"};
  BlockHarness all(setup_of(spec)), some(frozen);
  for (std::size_t i = 0; i < all.params().by_name().size(); ++i)
    some.set_value(*some.params().by_name()[i], all.value(*all.params().by_name()[i]));
  all.play(one_stage(2));
  some.play(one_stage(2));
  expect_same_bits(some.dx(0), all.dx(0), "dx");
  expect_same_bits(some.gradient(some.params().find("layers.0.mlp.gate.weight")),
                   all.gradient(all.params().find("layers.0.mlp.gate.weight")), "the gate");
}

// The definition, row by row and expert by expert, in fp64.
class Definition {
 public:
  Definition(BlockHarness& block, const MoeSpec& spec) : spec_(spec) {
    const auto read = [&](const std::string& name) {
      const std::vector<float> values = block.value(block.params().find(name));
      return std::vector<double>(values.begin(), values.end());
    };
    norm_ = read("layers.0.norm.weight");
    gate_ = read("layers.0.mlp.gate.weight");
    up_ = read("layers.0.mlp.experts.up.weight");
    down_ = read("layers.0.mlp.experts.down.weight");
    const std::vector<float> x = block.x(0);
    x_.assign(x.begin(), x.end());
  }

  std::size_t rows() const { return x_.size() / hidden; }

  std::vector<double> normed(std::size_t row) const {
    const double* x = x_.data() + row * hidden;
    double squares = 0;
    for (std::int64_t i = 0; i < hidden; ++i) squares += x[i] * x[i];
    std::vector<double> out(hidden);
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = x[i] * norm_[i] / std::sqrt(squares / hidden + 1e-5);
    return out;
  }

  std::vector<double> scores(std::size_t row, const std::vector<double>& gate) const {
    const std::vector<double> in = normed(row);
    std::vector<double> scores(static_cast<std::size_t>(spec_.router.experts));
    for (std::size_t e = 0; e < scores.size(); ++e)
      scores[e] = std::inner_product(in.begin(), in.end(), gate.begin() + static_cast<std::ptrdiff_t>(e * hidden), 0.0);
    const double largest = *std::max_element(scores.begin(), scores.end());
    for (double& score : scores) score = std::exp(score - largest);
    const double sum = std::accumulate(scores.begin(), scores.end(), 0.0);
    for (double& score : scores) score /= sum;
    return scores;
  }

  std::vector<std::size_t> chosen(std::size_t row) const {
    const std::vector<double> scores = this->scores(row, gate_);
    std::vector<std::size_t> order(scores.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
    order.resize(static_cast<std::size_t>(spec_.router.rule.topk));
    return order;
  }

  std::vector<double> y(std::size_t row) const {
    const std::vector<double> in = normed(row), scores = this->scores(row, gate_);
    std::vector<double> out(x_.begin() + static_cast<std::ptrdiff_t>(row * hidden),
                            x_.begin() + static_cast<std::ptrdiff_t>((row + 1) * hidden));
    double sum = 0;
    for (const std::size_t e : chosen(row)) sum += scores[e];
    for (const std::size_t e : chosen(row)) {
      const auto dot = [&](const std::vector<double>& w, std::size_t at, const std::vector<double>& v) {
        return std::inner_product(v.begin(), v.end(), w.begin() + static_cast<std::ptrdiff_t>(at), 0.0);
      };
      std::vector<double> act(ffn);
      for (std::size_t f = 0; f < act.size(); ++f) {
        const double g = dot(up_, (e * 2 * ffn + f) * hidden, in), u = dot(up_, (e * 2 * ffn + ffn + f) * hidden, in);
        act[f] = g / (1 + std::exp(-g)) * u;
      }
      for (std::size_t h = 0; h < out.size(); ++h) out[h] += scores[e] / sum * dot(down_, (e * hidden + h) * ffn, act);
    }
    return out;
  }

  const std::vector<double>& gate() const { return gate_; }

 private:
  const MoeSpec& spec_;
  std::vector<double> norm_, gate_, up_, down_, x_;
};

TEST(MoeBlock, IsWhatItsDefinitionSays) {
  const MoeSpec spec = moe_spec(5, 2);
  BlockHarness block(setup_of(spec));
  block.reset();
  block.forward_only();
  const Definition definition(block, spec);
  const std::vector<float>& y = block.y(0);
  for (std::size_t row = 0; row < definition.rows(); ++row) {
    const std::vector<double> want = definition.y(row);
    for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(y[row * hidden + i], want[i], 2e-5) << row << " " << i;
  }
}

// y with the gate lies between y without a shared expert and y with an ungated one, as far as sigmoid(x w) says.
TEST(MoeBlock, TheGateScalesTheSharedExpert) {
  MoeSpec spec = moe_spec(5, 2);
  BlockHarness without(setup_of(spec));
  spec.shared = shared_expert();
  BlockHarness whole(setup_of(spec));
  const std::string gate_name = "layers.0.mlp.shared_expert_gate";
  spec.shared->gate = gate_name;
  BlockHarness gated(setup_of(spec));
  for (BlockHarness* block : {&without, &whole}) {
    for (const Param* param : block->params().by_name())
      block->set_value(*param, gated.value(gated.params().find(param->spec.name)));
    block->set_x(gated.x(0));
    block->forward_only();
  }
  gated.forward_only();
  const Definition definition(gated, spec);
  const std::vector<float> gate = gated.value(gated.params().find(gate_name + ".weight"));
  ASSERT_EQ(gate.size(), static_cast<std::size_t>(hidden));
  for (std::size_t row = 0; row < definition.rows(); ++row) {
    const std::vector<double> in = definition.normed(row);
    const double share = 1 / (1 + std::exp(-std::inner_product(in.begin(), in.end(), gate.begin(), 0.0)));
    for (std::size_t i = row * hidden; i < (row + 1) * hidden; ++i) {
      const double want = without.y(0)[i] + share * (static_cast<double>(whole.y(0)[i]) - without.y(0)[i]);
      EXPECT_NEAR(gated.y(0)[i], want, 2e-5) << row;
    }
  }
}

// Finite differences move logits by some hundredths: where that changes a row's choice they measure a jump. The numbers
// of experts above are such that no row of these inputs is so close.

// What a loss that keeps the load even adds to the gradient of the gate, against finite differences of its definition:
// coefficient * E / (K n^2) * sum over experts of (rows that chose it) * (sum of its scores).
void expect_balance_gradient(double microbatch, double sequence) {
  MoeSpec spec = moe_spec(5, 2);
  BlockHarness without(setup_of(spec));
  spec.router.balance = microbatch;
  spec.router.sequence_balance = sequence;
  BlockHarness with(setup_of(spec));
  const Schedule one{{Act::F, 0}, {Act::BW, 0}};
  without.play(one);
  with.play(one);
  const std::vector<float> got = with.gradient(with.params().find("layers.0.mlp.gate.weight")),
                           base = without.gradient(without.params().find("layers.0.mlp.gate.weight"));
  with.reset();
  const Definition definition(with, spec);
  const std::size_t rows = definition.rows();
  const auto loss_of = [&](const std::vector<double>& gate, std::size_t parts) {
    double loss = 0;
    for (std::size_t part = 0; part < parts; ++part) {
      std::vector<double> counts(5, 0.0), sums(5, 0.0);
      const std::size_t n = rows / parts;
      for (std::size_t row = part * n; row < (part + 1) * n; ++row) {
        for (const std::size_t e : definition.chosen(row)) ++counts[e];
        const std::vector<double> scores = definition.scores(row, gate);
        for (std::size_t e = 0; e < 5; ++e) sums[e] += scores[e];
      }
      const auto size = static_cast<double>(n);
      loss += 5.0 / (2 * size * size) * std::inner_product(counts.begin(), counts.end(), sums.begin(), 0.0) /
              static_cast<double>(parts);
    }
    return loss;
  };
  const auto total = [&](const std::vector<double>& gate) {
    return 0.25 * (microbatch * loss_of(gate, 1) + sequence * loss_of(gate, 2));  // 0.25: aux_scale of the harness
  };
  for (std::size_t i = 0; i < got.size(); i += 7) {
    std::vector<double> up = definition.gate(), down = up;
    up[i] += 1e-5;
    down[i] -= 1e-5;
    EXPECT_NEAR(got[i] - base[i], (total(up) - total(down)) / 2e-5, 2e-5 * (microbatch + sequence)) << i;
  }
}

TEST(MoeBlock, BalanceOverTheMicrobatch) { expect_balance_gradient(3, 0); }
TEST(MoeBlock, BalanceOverEachSequence) { expect_balance_gradient(0, 3); }
TEST(MoeBlock, BalanceOverBoth) { expect_balance_gradient(2, 3); }

}  // namespace
}  // namespace tera::test
