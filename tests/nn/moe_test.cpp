#include "tera/nn/ffn/moe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include "tera/nn/recompute.h"
#include "tests/nn/block_checks.h"

namespace tera::test {
namespace {

constexpr std::int64_t hidden = 24, ffn = 16;

MoeSpec moe_spec(std::int64_t experts, std::int64_t topk) {
  MoeSpec spec;
  spec.name = "layers.0.mlp";
  spec.router = {.name = "layers.0.mlp.gate", .hidden = hidden, .experts = experts, .rule = {.topk = topk}};
  spec.experts = {.name = "layers.0.mlp.experts",
                  .prefix = "layers.0.mlp.experts.",
                  .up = {".gate_proj", ".up_proj"},
                  .down = ".down_proj",
                  .experts = experts,
                  .hidden = hidden,
                  .ffn = ffn};
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

// How the sublayer around the experts is configured.
struct Around {
  float dropout = 0;
  bool recompute_norm = false;
};

BlockSetup setup_of(const MoeSpec& spec, const Around& around = {}) {
  return {.make = make_sublayer({.norm = NormSpec{.name = "layers.0.norm", .size = hidden},
                                 .post_norm = {},
                                 .branches = {{.name = spec.name, .branch = spec, .norm = {}}},
                                 .dropout = around.dropout,
                                 .seed = 3,
                                 .recompute_norm = around.recompute_norm})};
}

TEST(MoeBlock, HoldsWhatEveryBlockMust) { check_block(setup_of(moe_spec(5, 2))); }

TEST(MoeBlock, AllExpertsOfARow) { check_block(setup_of(moe_spec(3, 3))); }

TEST(MoeBlock, SharedExpertAndDropout) {
  MoeSpec spec = moe_spec(3, 3);  // whatever the logits, the same choice
  spec.shared = shared_expert();
  check_block(setup_of(spec, {.dropout = 0.25f}));
}

TEST(MoeBlock, GateOfTheSharedExpert) {
  MoeSpec spec = moe_spec(3, 3);
  spec.shared = shared_expert();
  spec.shared->gate = "layers.0.mlp.shared_expert_gate";
  check_block(setup_of(spec));
  spec.recompute_activation = true;
  check_block(setup_of(spec, {.dropout = 0.25f, .recompute_norm = true}));
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
    spec.recompute_activation = activation;
    const BlockSetup remade = setup_of(spec, {.recompute_norm = norm});
    expect_same_results(kept, remade);
    check_split_backward(remade);
    check_memory(remade);
  }
}

// On one rank no row is sent; overlap changes only the order of computation and what is kept.
TEST(MoeBlock, OverlapChangesNoBit) {
  MoeSpec spec = moe_spec(5, 2);
  spec.shared = shared_expert();
  spec.shared->gate = "layers.0.mlp.shared_expert_gate";
  const BlockSetup plain = setup_of(spec);
  for (const auto& [shared, calls] : {std::pair{true, false}, {false, true}, {true, true}}) {
    spec.overlap_shared = shared;
    spec.overlap_calls = calls;
    const BlockSetup overlapped = setup_of(spec);
    expect_same_results(plain, overlapped);
    check_split_backward(overlapped);
    check_memory(overlapped);
  }
}

TEST(MoeBlock, FrozenExpertsStillPassGradientsOn) {
  const MoeSpec spec = moe_spec(5, 2);
  BlockSetup frozen = setup_of(spec);
  frozen.freeze = {"*.experts.*"};
  BlockHarness all(setup_of(spec)), some(frozen);
  for (std::size_t i = 0; i < all.params().by_name().size(); ++i)
    some.set_value(*some.params().by_name()[i], all.value(*all.params().by_name()[i]));
  all.execute(one_stage(2));
  some.execute(one_stage(2));
  expect_same_bits(some.dx(0), all.dx(0), "dx");
  expect_same_bits(some.gradient(some.params().find("layers.0.mlp.gate.weight")),
                   all.gradient(all.params().find("layers.0.mlp.gate.weight")), "the gate");
}

// The definition, row by row and expert by expert, in fp64.
class Definition {
 public:
  Definition(BlockHarness& block, const MoeSpec& spec, int microbatch = 0) : spec_(spec) {
    const auto read = [&](const std::string& name) {
      const std::vector<float> values = block.value(block.params().find(name));
      return std::vector<double>(values.begin(), values.end());
    };
    norm_ = read("layers.0.norm.weight");
    gate_ = read("layers.0.mlp.gate.weight");
    up_ = read("layers.0.mlp.experts.up.weight");
    down_ = read("layers.0.mlp.experts.down.weight");
    const std::vector<float> x = block.x(microbatch);
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

  std::vector<double> logits(std::size_t row, const std::vector<double>& gate) const {
    const std::vector<double> in = normed(row);
    std::vector<double> logits(static_cast<std::size_t>(spec_.router.experts));
    for (std::size_t e = 0; e < logits.size(); ++e)
      logits[e] = std::inner_product(in.begin(), in.end(), gate.begin() + static_cast<std::ptrdiff_t>(e * hidden), 0.0);
    return logits;
  }

  double log_sum(std::size_t row) const {
    double sum = 0;
    for (const double logit : logits(row, gate_)) sum += std::exp(logit);
    return std::log(sum);
  }

  std::vector<double> scores(std::size_t row, const std::vector<double>& gate) const {
    std::vector<double> scores = logits(row, gate);
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

  // The weights of the experts that a row chose.
  using Weights = std::map<std::size_t, double>;
  Weights weights(std::size_t row) const { return weights(row, chosen(row)); }
  Weights weights(std::size_t row, const std::vector<std::size_t>& chosen) const {
    const std::vector<double> scores = this->scores(row, gate_);
    Weights weights;
    double sum = 0;
    for (const std::size_t e : chosen) sum += scores[e];
    for (const std::size_t e : chosen) weights[e] = scores[e] / sum;
    return weights;
  }

  std::vector<double> y(std::size_t row, const std::function<bool(std::size_t)>& sees = {}) const {
    return y(row, weights(row), sees);
  }
  std::vector<double> y(std::size_t row, const Weights& weights, const std::function<bool(std::size_t)>& sees) const {
    const std::vector<double> in = normed(row);
    std::vector<double> out(x_.begin() + static_cast<std::ptrdiff_t>(row * hidden),
                            x_.begin() + static_cast<std::ptrdiff_t>((row + 1) * hidden));
    for (const auto& [e, weight] : weights) {
      if (sees && !sees(e)) continue;
      const auto dot = [&](const std::vector<double>& w, std::size_t at, const std::vector<double>& v) {
        return std::inner_product(v.begin(), v.end(), w.begin() + static_cast<std::ptrdiff_t>(at), 0.0);
      };
      std::vector<double> act(ffn);
      for (std::size_t f = 0; f < act.size(); ++f) {
        const double g = dot(up_, (e * 2 * ffn + f) * hidden, in), u = dot(up_, (e * 2 * ffn + ffn + f) * hidden, in);
        act[f] = g / (1 + std::exp(-g)) * u;
      }
      for (std::size_t h = 0; h < out.size(); ++h) out[h] += weight * dot(down_, (e * hidden + h) * ffn, act);
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

// Experts with a fixed number of rows: of each, the first of its tokens or those with the largest weights stay.
TEST(MoeBlock, RowsThatAreTooManyAreDropped) {
  for (const TokenDropPolicy drop : {TokenDropPolicy::probs, TokenDropPolicy::position}) {
    MoeSpec spec = moe_spec(5, 2);
    spec.expert_capacity = 0.8;
    spec.drop = drop;
    BlockHarness block(setup_of(spec));
    block.reset();
    block.forward_only();
    const Definition definition(block, spec);
    const std::size_t capacity = 6;  // ceil(0.8 * 18 * 2 / 5)
    std::vector<std::set<std::size_t>> kept(5);
    std::size_t dropped = 0;
    for (std::size_t e = 0; e < kept.size(); ++e) {
      std::vector<std::pair<double, std::size_t>> rows;  // rows that chose this expert, best first
      for (std::size_t row = 0; row < definition.rows(); ++row)
        if (definition.weights(row).contains(e))
          rows.emplace_back(drop == TokenDropPolicy::probs ? -definition.weights(row).at(e) : 0.0, row);
      std::sort(rows.begin(), rows.end());
      for (std::size_t i = 0; i < rows.size(); ++i)
        if (i < capacity) kept[e].insert(rows[i].second);
      dropped += rows.size() - kept[e].size();
    }
    EXPECT_GT(dropped, 2u);
    for (std::size_t row = 0; row < definition.rows(); ++row) {
      const std::vector<double> want = definition.y(row, [&](std::size_t e) { return kept[e].contains(row); });
      for (std::size_t i = 0; i < want.size(); ++i)
        EXPECT_NEAR(block.y(0)[row * hidden + i], want[i], 2e-5) << row << " " << i;
    }
  }
}

TEST(MoeBlock, FixedNumbersOfRows) {
  MoeSpec spec = moe_spec(3, 3);
  spec.drop = TokenDropPolicy::position;
  for (const double factor : {0.5, 1.0, 2.0}) {
    spec.expert_capacity = factor;
    check_block(setup_of(spec));
  }
}

// y with the gate lies between y without a shared expert and y with an ungated one, as far as sigmoid(x w) says.
TEST(MoeBlock, TheGateScalesTheSharedExpert) {
  MoeSpec spec = moe_spec(5, 2);
  BlockHarness without(setup_of(spec));
  spec.shared = shared_expert();
  BlockHarness ungated(setup_of(spec));
  const std::string gate_name = "layers.0.mlp.shared_expert_gate";
  spec.shared->gate = gate_name;
  BlockHarness gated(setup_of(spec));
  for (BlockHarness* block : {&without, &ungated}) {
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
    const double gate_value = 1 / (1 + std::exp(-std::inner_product(in.begin(), in.end(), gate.begin(), 0.0)));
    for (std::size_t i = row * hidden; i < (row + 1) * hidden; ++i) {
      const double want = without.y(0)[i] + gate_value * (static_cast<double>(ungated.y(0)[i]) - without.y(0)[i]);
      EXPECT_NEAR(gated.y(0)[i], want, 2e-5) << row;
    }
  }
}

// Finite differences move logits by some hundredths: where that changes a row's choice they measure a jump. The numbers
// of experts above are such that no row of these inputs is so close.

// What a loss that keeps the load even adds to the gradient of the gate, against finite differences of its definition:
// coefficient * E / (K n^2) * sum over experts of (rows that chose it) * (sum of its scores).
// (with shares of all choices in place of counts, coefficient * E / n * sum of shares * scores).
struct Balance {
  double microbatch = 0, sequence = 0, global = 0;
};
void expect_balance_gradient(const Balance& wanted) {
  const auto& [microbatch, sequence, global] = wanted;
  MoeSpec spec = moe_spec(5, 2);
  BlockHarness without(setup_of(spec));
  spec.router.balance = microbatch;
  spec.router.sequence_balance = sequence;
  spec.router.global_balance = global;
  BlockHarness with(setup_of(spec));
  for (const Param* param : without.params().by_name())
    with.set_value(with.params().find(param->spec.name), without.value(*param));
  const Schedule one{{Act::F, 0}, {Act::BW, 0}};
  without.execute(one);
  with.execute(one);
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
  const auto global_loss_of = [&](const std::vector<double>& gate) {
    if (global == 0) return 0.0;
    const std::vector<float> shares = with.value(with.params().find("optimizer.expert_shares.layers.0.mlp.gate"));
    double loss = 0;
    for (std::size_t row = 0; row < rows; ++row) {
      const std::vector<double> scores = definition.scores(row, gate);
      loss += std::inner_product(scores.begin(), scores.end(), shares.begin(), 0.0);
    }
    return 5.0 / static_cast<double>(rows) * loss;
  };
  const auto total = [&](const std::vector<double>& gate) {  // 0.25: aux_scale of the harness
    return 0.25 * (microbatch * loss_of(gate, 1) + sequence * loss_of(gate, 2) + global * global_loss_of(gate));
  };
  for (std::size_t i = 0; i < got.size(); i += 7) {
    std::vector<double> up = definition.gate(), down = up;
    up[i] += 1e-5;
    down[i] -= 1e-5;
    EXPECT_NEAR(got[i] - base[i], (total(up) - total(down)) / 2e-5, 2e-5 * (microbatch + sequence + global)) << i;
  }
}

TEST(MoeBlock, BalanceOverTheMicrobatch) { expect_balance_gradient({.microbatch = 3}); }
TEST(MoeBlock, BalanceOverEachSequence) { expect_balance_gradient({.sequence = 3}); }
TEST(MoeBlock, BalanceOverTheGlobalBatch) { expect_balance_gradient({.global = 3}); }
TEST(MoeBlock, BalanceOverAllOfThem) {
  expect_balance_gradient({.microbatch = 2, .sequence = 3});
  expect_balance_gradient({.sequence = 2, .global = 3});
  expect_balance_gradient({.microbatch = 2, .sequence = 3, .global = 4});
}

// What a step reports of its routers, by definition: rows of each expert over both microbatches, and the sums of
// losses, whether F runs once or twice.
void expect_tallies(bool recomputed) {
  MoeSpec spec = moe_spec(5, 2);
  spec.router.layer = 0;
  spec.router.balance = 2;
  spec.router.sequence_balance = 3;
  spec.router.global_balance = 4;
  spec.router.z = 0.5;
  const auto make = [&](ParamStore& params) -> std::unique_ptr<Block> {
    std::unique_ptr<Block> block = setup_of(spec).make(params);
    if (!recomputed) return block;
    return std::make_unique<Recompute>(std::move(block));
  };
  BlockHarness block({.make = make, .offsets = {}, .freeze = {}, .experts = 5});
  block.reset();
  const std::vector<float> shares = block.value(block.params().find("optimizer.expert_shares.layers.0.mlp.gate"));
  std::vector<double> all(5, 0.0), losses(4, 0.0);
  for (const int microbatch : {0, 1}) {
    const Definition definition(block, spec, microbatch);
    const std::size_t rows = definition.rows();
    const auto loss_of = [&](std::size_t begin, std::size_t end, bool global) {
      std::vector<double> counts(5, 0.0), sums(5, 0.0);
      for (std::size_t row = begin; row < end; ++row) {
        const std::vector<double> scores = definition.scores(row, definition.gate());
        for (const std::size_t e : definition.chosen(row)) ++counts[e];
        for (std::size_t e = 0; e < 5; ++e) sums[e] += scores[e];
      }
      const auto n = static_cast<double>(end - begin);
      if (global) return 5 / n * std::inner_product(sums.begin(), sums.end(), shares.begin(), 0.0);
      return 5 / (2 * n * n) * std::inner_product(sums.begin(), sums.end(), counts.begin(), 0.0);
    };
    losses[0] += 2 * loss_of(0, rows, false);
    losses[1] += 3 * (loss_of(0, rows / 2, false) + loss_of(rows / 2, rows, false)) / 2;
    losses[2] += 4 * loss_of(0, rows, true);
    for (std::size_t row = 0; row < rows; ++row) {
      const double log_sum = definition.log_sum(row);
      losses[3] += log_sum * log_sum;
      for (const std::size_t e : definition.chosen(row)) ++all[e];
    }
  }
  block.execute(one_stage(2));
  const std::vector<std::int32_t> counts = block.expert_counts();
  EXPECT_EQ(std::vector<double>(counts.begin(), counts.end()), all);
  for (std::size_t i = 0; i < losses.size(); ++i)
    EXPECT_NEAR(block.aux_losses()[i], losses[i], 1e-5 * std::abs(losses[i])) << "loss " << i;
}

TEST(MoeBlock, ReportsHowExpertsAreUsed) {
  expect_tallies(false);
  expect_tallies(true);
}

// A bias changes which experts a row chooses, and has no part in how much they count.
TEST(MoeBlock, BiasIsForTheChoiceAlone) {
  MoeSpec spec = moe_spec(5, 2);
  spec.router.bias = "layers.0.mlp.gate.e_score_correction_bias";
  check_block(setup_of(spec));
  BlockHarness block(setup_of(spec));
  const Param& bias = block.params().find(spec.router.bias);
  EXPECT_FALSE(bias.grad);
  EXPECT_EQ(bias.value.dtype, DType::f32);
  block.set_value(bias, {0.0f, 100.0f, 0.0f, 100.0f, 0.0f});  // scores are at most 1: every row chooses 1 and 3
  block.reset();
  block.forward_only();
  const Definition definition(block, spec);
  for (std::size_t row = 0; row < definition.rows(); ++row) {
    const std::vector<double> want = definition.y(row, definition.weights(row, {1, 3}), {});
    for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(block.y(0)[row * hidden + i], want[i], 2e-5) << row;
  }
  BlockSetup rounded = setup_of(spec);
  rounded.compute = DType::bf16;
  BlockHarness coarse(rounded);
  EXPECT_EQ(coarse.params().find(spec.router.bias).value.dtype, DType::f32);
}

}  // namespace
}  // namespace tera::test
