// model.moe: what follows from the keys, which layers have experts, and every rule they can break.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>

#include "tera/base/error.h"
#include "tera/checkpoint/weight_source.h"
#include "tera/config/family.h"
#include "tera/config/moe_layers.h"
#include "tera/models/spec.h"
#include "tera/setup/describe.h"
#include "tera/setup/resolve.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace tera::test {
namespace {

using Change = std::function<void(RunConfig&, MoeConfig&)>;
using Layers = std::vector<bool>;

// 8 experts, 2 of them for a token.
RunConfig small(std::string_view arch = "mixtral") {
  RunConfig config;
  config.model.arch = &family_named(arch);
  family_named(arch).defaults(config.model);
  config.model.num_layers = 6;
  config.model.hidden_size = 96;
  config.model.ffn_hidden_size = 192;
  config.model.num_attention_heads = 6;
  config.model.kv_channels = 16;
  config.train.train_iters = 100;
  config.train.seq_length = 32;
  config.optimizer.lr = 1e-3;
  return config;
}

RunConfig changed(const Change& change, std::string_view arch = "mixtral") {
  RunConfig config = small(arch);
  change(config, config.model.moe);
  return config;
}

MoeShape moe_of(const Change& change, std::string_view arch = "mixtral") {
  return *resolve(changed(change, arch)).model.moe;
}

std::string mistakes(const Change& change, int world = 1) {
  return message_of<UserError>([&] { resolve(changed(change), Purpose::train, nullptr, world); });
}

void expect_broken(std::string_view key, std::string_view words, const Change& change, int world = 1) {
  const std::string message = mistakes(change, world);
  EXPECT_TRUE(contains(message, key) && contains(message, words)) << message;
  EXPECT_FALSE(contains(message, "\n")) << "one mistake, one line: " << message;
}

const Change nothing = [](RunConfig&, MoeConfig&) {};

TEST(ResolveMoe, FamiliesHaveTheirExperts) {
  const MoeShape mixtral = moe_of(nothing);
  EXPECT_EQ(mixtral, (MoeShape{.experts = 8, .ffn = 192, .layers = Layers(6, true), .router = {.topk = 2}}));
  const MoeShape qwen = moe_of([](RunConfig&, MoeConfig& m) { m.ffn_hidden_size = 48; }, "qwen3_moe");
  EXPECT_EQ(qwen, (MoeShape{.experts = 128, .ffn = 48, .layers = Layers(6, true), .router = {.topk = 8}}));
  const ModelShape dense = resolve(small("llama")).model;
  EXPECT_FALSE(dense.moe.has_value());
  EXPECT_TRUE(dense.has_dense_ffn());
  EXPECT_FALSE(resolve(small()).model.has_dense_ffn());
}

TEST(ResolveMoe, LayersAreThoseThatAllKeysAllow) {
  const auto layers = [](const Change& change) { return moe_of(change).layers; };
  EXPECT_EQ(layers([](RunConfig&, MoeConfig& m) { m.layer_freq = 2; }), (Layers{1, 0, 1, 0, 1, 0}));
  EXPECT_EQ(layers([](RunConfig&, MoeConfig& m) { m.decoder_sparse_step = 2; }), (Layers{0, 1, 0, 1, 0, 1}));
  EXPECT_EQ(layers([](RunConfig&, MoeConfig& m) { m.first_k_dense = 4; }), (Layers{0, 0, 0, 0, 1, 1}));
  const Change some = [](RunConfig&, MoeConfig& m) {
    m.decoder_sparse_step = 2;
    m.mlp_only_layers = {3, 4};
  };
  EXPECT_EQ(layers(some), (Layers{0, 1, 0, 0, 0, 1}));
  const ModelShape model = resolve(changed(some)).model;
  EXPECT_TRUE(model.has_experts(5) && !model.has_experts(4) && model.has_dense_ffn());
  expect_broken("model.moe.num_experts=8", "no layer would have experts", [](RunConfig&, MoeConfig& m) {
    m.layer_freq = 2;
    m.decoder_sparse_step = 2;
  });
  expect_broken("model.moe.mlp_only_layers=[6]", "6 is no layer; they are 0 to 5",
                [](RunConfig&, MoeConfig& m) { m.mlp_only_layers = {6}; });
  expect_broken("model.moe.mlp_only_layers=[-1]", "-1 is no layer",
                [](RunConfig&, MoeConfig& m) { m.mlp_only_layers = {-1}; });
}

TEST(ResolveMoe, EveryChoiceOfLayersHasOneForm) {
  for (unsigned bits = 1; bits < 64; ++bits) {
    Layers layers;
    for (unsigned i = 0; i < 6; ++i) layers.push_back((bits >> i & 1) != 0);
    MoeConfig moe{.layer_freq = 5, .first_k_dense = 3};
    set_moe_layers(moe, layers);
    EXPECT_EQ(moe_layers(moe, 6), layers) << bits;
    MoeConfig again = moe;
    set_moe_layers(again, moe_layers(moe, 6));
    EXPECT_EQ(again, moe) << bits;
  }
}

// Megatron's rule: with softmax unless pre_softmax, with sigmoid where there are several.
TEST(ResolveMoe, WeightsAreRenormalizedByMegatronsRule) {
  const auto renormalized = [](ScoreFunction score, bool pre_softmax, std::int64_t topk) {
    return moe_of([&](RunConfig&, MoeConfig& m) {
             m.router_score_function = score;
             m.router_pre_softmax = pre_softmax;
             m.router_topk = topk;
           })
        .router.renormalize;
  };
  EXPECT_TRUE(renormalized(ScoreFunction::softmax, false, 2));
  EXPECT_FALSE(renormalized(ScoreFunction::softmax, true, 2));
  EXPECT_FALSE(renormalized(ScoreFunction::softmax, true, 1));
  EXPECT_TRUE(renormalized(ScoreFunction::sigmoid, false, 2));
  EXPECT_FALSE(renormalized(ScoreFunction::sigmoid, false, 1));
}

TEST(ResolveMoe, GroupsCountByTheirBest) {
  const auto grouped = [](ScoreFunction score, std::int64_t groups) {
    return moe_of([&](RunConfig&, MoeConfig& m) {
             m.router_score_function = score;
             m.router_num_groups = groups;
             m.router_group_topk = 2;
           })
        .router;
  };
  EXPECT_EQ(grouped(ScoreFunction::sigmoid, 4),
            (RouterShape{.score = ScoreFunction::sigmoid, .topk = 2, .groups = 4, .group_topk = 2, .group_best = 2}));
  EXPECT_EQ(grouped(ScoreFunction::softmax, 4).group_best, 1);
  EXPECT_EQ(grouped(ScoreFunction::sigmoid, 8).group_best, 1) << "a group of one has no second best";
}

TEST(ResolveMoe, LossesAreThoseThatCount) {
  const MoeShape moe = moe_of([](RunConfig&, MoeConfig& m) {
    m.router_load_balancing_type = {"seq_aux_loss", "aux_loss", "global_aux_loss"};
    m.aux_loss_coeff = {1e-4, 0, 1e-2};
    m.z_loss_coeff = 1e-3;
  });
  EXPECT_EQ(moe.losses,
            (std::vector<BalanceLoss>{{LoadBalancing::seq_aux_loss, 1e-4}, {LoadBalancing::global_aux_loss, 1e-2}}));
  EXPECT_EQ(moe.z_loss, 1e-3);
  EXPECT_TRUE(moe_of([](RunConfig&, MoeConfig& m) { m.router_load_balancing_type = {"none"}; }).losses.empty());
}

TEST(ResolveMoe, OtherKeysArriveAsTheyAre) {
  const MoeShape moe = moe_of([](RunConfig&, MoeConfig& m) {
    m.router_score_function = ScoreFunction::sigmoid;
    m.router_topk_scaling_factor = 2.5;
    m.router_enable_expert_bias = true;
    m.router_bias_update_rate = 0.25;
    m.router_force_load_balancing = true;
    m.token_dispatcher_type = TokenDispatcher::alltoall;
    m.expert_capacity_factor = 1.5;
    m.token_drop_policy = TokenDropPolicy::position;
    m.shared_expert_intermediate_size = 64;
    m.shared_expert_gate = m.shared_expert_overlap = true;
  });
  EXPECT_EQ(moe, (MoeShape{.experts = 8,
                           .ffn = 192,
                           .layers = Layers(6, true),
                           .router = {.score = ScoreFunction::sigmoid,
                                      .topk = 2,
                                      .scale = 2.5f,
                                      .force_balance = true,
                                      .expert_bias = true,
                                      .bias_rate = 0.25f},
                           .dispatcher = TokenDispatcher::alltoall,
                           .capacity_factor = 1.5,
                           .drop = TokenDropPolicy::position,
                           .shared_ffn = 64,
                           .shared_gate = true,
                           .shared_overlap = true}));
  EXPECT_EQ(moe_of([](RunConfig&, MoeConfig& m) { m.expert_rank_capacity_factor = 2; }).rank_capacity_factor, 2);
}

TEST(ResolveMoe, BrokenRulesOfTheRouter) {
  expect_broken("model.moe.router_topk=9", "more than num_experts, which is 8",
                [](RunConfig&, MoeConfig& m) { m.router_topk = 9; });
  expect_broken("model.moe.router_topk=1", "set router_pre_softmax=true",
                [](RunConfig&, MoeConfig& m) { m.router_topk = 1; });
  expect_broken("model.moe.router_topk=2", "must be below 2^31", [](RunConfig& c, MoeConfig&) {
    c.train.micro_batch_size = 1 << 20;
    c.train.seq_length = 1 << 10;
  });
  expect_broken("model.moe.router_pre_softmax=true", "needs router_score_function=softmax",
                [](RunConfig&, MoeConfig& m) {
                  m.router_score_function = ScoreFunction::sigmoid;
                  m.router_pre_softmax = true;
                });
  expect_broken("model.moe.router_enable_expert_bias=true", "needs router_score_function=sigmoid; or set it to false",
                [](RunConfig&, MoeConfig& m) { m.router_enable_expert_bias = true; });
  const auto groups = [](std::int64_t count, std::int64_t chosen, std::int64_t topk) {
    return [=](RunConfig&, MoeConfig& m) {
      m.router_num_groups = count;
      m.router_group_topk = chosen;
      m.router_topk = topk;
    };
  };
  expect_broken("model.moe.router_group_topk is not given", "go together", groups(4, 0, 2));
  expect_broken("model.moe.router_num_groups is not given", "go together", groups(0, 1, 2));
  expect_broken("model.moe.router_num_groups=3", "must divide num_experts, which is 8; nearest: 2 or 4",
                groups(3, 1, 2));
  expect_broken("model.moe.router_group_topk=5", "more than router_num_groups, which is 4", groups(4, 5, 2));
  expect_broken("model.moe.router_group_topk=1", "have 2 experts, fewer than router_topk, which is 3", groups(4, 1, 3));
}

TEST(ResolveMoe, BrokenRulesOfLossesAndCapacity) {
  const auto losses = [](std::vector<std::string> types, std::vector<double> coefficients) {
    return [=](RunConfig&, MoeConfig& m) {
      m.router_load_balancing_type = types;
      m.aux_loss_coeff = coefficients;
    };
  };
  expect_broken("model.moe.aux_loss_coeff=[0.1, 0.2]",
                "has 2 values for the 1 of router_load_balancing_type; write aux_loss_coeff=[a]",
                losses({"aux_loss"}, {0.1, 0.2}));
  expect_broken("model.moe.aux_loss_coeff=[-0.1]", "must be from 0", losses({"aux_loss"}, {-0.1}));
  expect_broken("model.moe.router_load_balancing_type", "'sinkhorn' is not aux_loss, seq_aux_loss, global_aux_loss",
                losses({"sinkhorn"}, {0}));
  expect_broken("model.moe.router_load_balancing_type", "twice", losses({"aux_loss", "aux_loss"}, {1, 1}));
  expect_broken("model.moe.router_load_balancing_type", "none stands alone", losses({"aux_loss", "none"}, {1, 0}));
  expect_broken("model.moe.aux_loss_coeff=[1]", "which is none; or set it to 0", losses({"none"}, {1}));
  expect_broken("model.moe.aux_loss_coeff=[1]", "write aux_loss_coeff=[a, b, c]",
                losses({"aux_loss", "seq_aux_loss", "global_aux_loss"}, {1}));
  expect_broken("model.moe.token_drop_policy=position", "needs expert_capacity_factor",
                [](RunConfig&, MoeConfig& m) { m.token_drop_policy = TokenDropPolicy::position; });
  expect_broken("model.moe.expert_rank_capacity_factor=0.5", "at least 1",
                [](RunConfig&, MoeConfig& m) { m.expert_rank_capacity_factor = 0.5; });
  expect_broken("model.moe.expert_rank_capacity_factor=2", "give either this or", [](RunConfig&, MoeConfig& m) {
    m.expert_rank_capacity_factor = 2;
    m.expert_capacity_factor = 1;
  });
  expect_broken("model.moe.shared_expert_gate=true", "needs shared_expert_intermediate_size",
                [](RunConfig&, MoeConfig& m) { m.shared_expert_gate = true; });
  expect_broken("model.moe.shared_expert_overlap=true", "needs shared_expert_intermediate_size",
                [](RunConfig&, MoeConfig& m) { m.shared_expert_overlap = true; });
}

TEST(ResolveMoe, BrokenRulesOfTheModel) {
  expect_broken("model.moe.num_experts=8",
                "a llama has no experts; model.arch=deepseek_v2, deepseek_v3, mixtral or qwen3_moe have",
                [](RunConfig& c, MoeConfig&) { c.model.arch = &family_named("llama"); });
  expect_broken("model.moe.num_experts is not given", "a mixtral has experts",
                [](RunConfig&, MoeConfig& m) { m = {}; });
  expect_broken("model.moe.shared_expert_gate=true",
                "a llama has no experts; model.arch=", [](RunConfig& c, MoeConfig& m) {
                  c.model.arch = &family_named("llama");
                  m = {.shared_expert_gate = true};
                });
  expect_broken("model.add_mlp_bias=true", "experts have no biases",
                [](RunConfig& c, MoeConfig&) { c.model.add_mlp_bias = true; });
  expect_broken("model.add_bias_linear=true", "experts have no biases",
                [](RunConfig& c, MoeConfig&) { c.model.add_bias_linear = true; });
  expect_broken("model.hidden_size", "more than can be counted", [](RunConfig& c, MoeConfig& m) {
    m.num_experts = 512;
    m.ffn_hidden_size = 1 << 24;
    c.model.num_layers = 100'000;
    c.model.hidden_size = c.model.num_attention_heads * (1 << 18);
  });
}

TEST(ResolveMoe, AllMistakesAreReportedAtOnce) {
  const std::string message = mistakes([](RunConfig&, MoeConfig& m) {
    m.router_topk = 9;
    m.mlp_only_layers = {7};
    m.shared_expert_gate = true;
  });
  for (const char* key : {"router_topk=9", "mlp_only_layers=[7]", "shared_expert_gate=true"})
    EXPECT_TRUE(contains(message, key)) << message;
}

// --- over ranks

TEST(ResolveMoe, ExpertsAreSplitOverRanks) {
  const Change split = [](RunConfig& c, MoeConfig&) {
    c.dist.tensor_model_parallel_size = 2;
    c.dist.expert_model_parallel_size = 4;
    c.dist.expert_tensor_parallel_size = 1;
  };
  const ParallelShape shape = resolve(changed(split), Purpose::train, nullptr, 8).parallel;
  EXPECT_EQ(shape.mesh, (MeshSizes{.world = 8, .tp = 2, .ep = 4, .etp = 1}));
  EXPECT_EQ(shape.dp, 4);
  EXPECT_EQ(smallest_world(changed(split)), 4);
  const Change wide = [](RunConfig& c, MoeConfig&) {
    c.dist.tensor_model_parallel_size = 2;
    c.dist.pipeline_model_parallel_size = 3;
    c.dist.expert_model_parallel_size = 2;
  };
  EXPECT_EQ(smallest_world(changed(wide)), 12) << "experts are cut as the rest is";
  expect_broken(
      "dist.expert_model_parallel_size=3",
      "must divide model.moe.num_experts, which is 8; nearest: 1, or model.moe.num_experts 6 or 9",
      [](RunConfig& c, MoeConfig&) { c.dist.expert_model_parallel_size = 3; }, 3);
  expect_broken(
      "dist.expert_model_parallel_size=3", "must divide model.moe.num_experts, which is 8; nearest: 2 or 4,",
      [](RunConfig& c, MoeConfig&) { c.dist.expert_model_parallel_size = 3; }, 12);
  expect_broken(
      "dist.expert_model_parallel_size=2", "which is 7; nearest: 1, or model.moe.num_experts 6 or 8",
      [](RunConfig& c, MoeConfig& m) {
        c.dist.expert_model_parallel_size = 2;
        m.num_experts = 7;
      },
      2);
  expect_broken(
      "dist.expert_model_parallel_size=2", "ranks, which is 3; nearest: expert_model_parallel_size 1, or 2 or 4 ranks",
      [](RunConfig& c, MoeConfig&) { c.dist.expert_model_parallel_size = 2; }, 3);
  expect_broken(
      "dist.expert_model_parallel_size=64",
      "ranks, which is 1000; nearest: expert_model_parallel_size 8, or 960 or 1024 ranks",
      [](RunConfig& c, MoeConfig& m) {
        c.dist.expert_model_parallel_size = 64;
        m.num_experts = 256;
      },
      1000);
  expect_broken(
      "dist.expert_model_parallel_size=4", "must divide the number of ranks, which is 6",
      [](RunConfig& c, MoeConfig&) { c.dist.expert_model_parallel_size = 4; }, 6);
  expect_broken(
      "dist.expert_tensor_parallel_size=5", "must divide the width of an expert, which is 192; nearest: 4 or 6",
      [](RunConfig& c, MoeConfig&) { c.dist.expert_tensor_parallel_size = 5; }, 5);
  expect_broken(
      "dist.expert_tensor_parallel_size=0",
      "tensor_model_parallel_size, which is 2, must divide the width of an expert, which is 5",
      [](RunConfig& c, MoeConfig& m) {
        c.dist.tensor_model_parallel_size = 2;
        m.ffn_hidden_size = 5;
      },
      2);
  expect_broken(
      "model.moe.shared_expert_intermediate_size=7", "multiple of dist.tensor_model_parallel_size",
      [](RunConfig& c, MoeConfig& m) {
        c.dist.tensor_model_parallel_size = 2;
        m.shared_expert_intermediate_size = 7;
      },
      2);
  const auto odd_rows = [](std::int64_t ep, bool sequence_parallel) {
    return [=](RunConfig& c, MoeConfig&) {
      c.dist.tensor_model_parallel_size = 2;
      c.dist.expert_model_parallel_size = ep;
      c.dist.expert_tensor_parallel_size = 1;
      c.dist.sequence_parallel = sequence_parallel;
      c.train.seq_length = 15;
    };
  };
  expect_broken("dist.expert_model_parallel_size=4", "must divide train.micro_batch_size x seq_length, which is 15",
                odd_rows(4, false), 4);
  expect_broken("dist.sequence_parallel=true", "must divide train.micro_batch_size x seq_length", odd_rows(4, true), 4);
  EXPECT_NO_THROW(resolve(changed(odd_rows(2, false)), Purpose::train, nullptr, 2)) << "all rows are everywhere";
  expect_broken(
      "dist.expert_model_parallel_size=8", "route 2147483648 choices of tokens at a time; these must be below 2^31",
      [](RunConfig& c, MoeConfig&) {
        c.dist.expert_model_parallel_size = 8;
        c.train.micro_batch_size = 1 << 12;
        c.train.seq_length = 1 << 15;
        c.train.global_batch_size = 1 << 15;
      },
      8);
  for (const Change& dense : {Change([](RunConfig&c, MoeConfig&) { c.dist.expert_model_parallel_size = 2; }),
                              Change([](RunConfig&c, MoeConfig&) { c.dist.expert_tensor_parallel_size = 2; })})
    expect_broken(
        "dist.expert_", "a llama has no experts; model.arch=",
        [&](RunConfig& c, MoeConfig& m) {
          c.model.arch = &family_named("llama");
          m = {};
          dense(c, m);
        },
        2);
}

TEST(ResolveMoe, AWidthThatNoLayerHasNeedNotBeSplit) {
  const Change odd = [](RunConfig& c, MoeConfig& m) {
    c.dist.tensor_model_parallel_size = 2;
    c.model.ffn_hidden_size = 191;
    m.ffn_hidden_size = 64;
  };
  EXPECT_NO_THROW(resolve(changed(odd), Purpose::train, nullptr, 2));
  expect_broken(
      "dist.tensor_model_parallel_size=2", "divide model.ffn_hidden_size, which is 191",
      [&](RunConfig& c, MoeConfig& m) {
        odd(c, m);
        m.first_k_dense = 1;
      },
      2);
}

// --- as text

TEST(ResolveMoe, KeysAreReadAndReported) {
  const TempFolder folder;
  const auto file = folder.write("run.yaml",
                                 "model: {arch: qwen3_moe, num_layers: 2, hidden_size: 64, num_attention_heads: 4, "
                                 "ffn_hidden_size: 96, moe: {num_experts: 16, aux_loss_coeff: 0.5}}\n"
                                 "train: {train_iters: 1, seq_length: 8}\noptimizer: {lr: 1e-3}\n");
  const LoadedConfig loaded = load_config(file.string(), std::vector<std::string>{"model.moe.mlp_only_layers=[1]"});
  EXPECT_EQ(loaded.config.model.moe.aux_loss_coeff, std::vector<double>{0.5}) << "one number is a list of one";
  EXPECT_EQ(loaded.config.model.moe.router_topk, 8);
  EXPECT_EQ(loaded.origins.at("model.moe.router_topk"), "default of model.arch=qwen3_moe");
  const tera::Setup setup = resolve(loaded.config);
  const std::string yaml = resolved_yaml(setup);
  EXPECT_TRUE(contains(yaml, "    ffn_hidden_size: 0")) << yaml;
  EXPECT_TRUE(contains(yaml, "# 96")) << "what it becomes";
  EXPECT_EQ(resolve(load_config_text(yaml, "text").config), setup) << "and it reads back as it was";
  const auto wrong = [&](const std::string& value) {
    return message_of<UserError>(
        [&] { load_config(file.string(), std::vector<std::string>{"model.moe.aux_loss_coeff=" + value}); });
  };
  EXPECT_TRUE(contains(wrong("[0.1, many]"), "'many' is not a number"));
  EXPECT_TRUE(contains(wrong("much"), "'much' is not a number"));
  EXPECT_TRUE(contains(wrong("{a: 1}"), "a map is not a number or a list of numbers"));
}

// Keys of a config file for a small DeepSeek-V3 are printed with the origin of their values.
class SmallDeepSeek : public testing::Test {
 protected:
  LoadedConfig load(const std::vector<std::string>& overrides) const {
    return load_config(folder_
                           .write("run.yaml",
                                  "model: {arch: deepseek_v3, num_layers: 4, hidden_size: 64, num_attention_heads: 4}\n"
                                  "train: {train_iters: 1, seq_length: 8}\noptimizer: {lr: 1e-3}\n")
                           .string(),
                       overrides);
  }
  std::vector<BalanceLoss> losses(const std::vector<std::string>& overrides) const {
    return resolve(load(overrides).config).model.moe->losses;
  }
  std::string refusal(const std::vector<std::string>& overrides) const {
    return message_of<UserError>([&] {
      const LoadedConfig loaded = load(overrides);
      resolve(loaded.config, Purpose::train, &loaded.origins);
    });
  }

  TempFolder folder_;
};

TEST_F(SmallDeepSeek, ACoefficientThatNobodyGaveFollowsTheLosses) {
  const std::string type = "model.moe.router_load_balancing_type=", coefficient = "model.moe.aux_loss_coeff=";
  using Losses = std::vector<BalanceLoss>;
  EXPECT_EQ(losses({}), (Losses{{LoadBalancing::seq_aux_loss, 1e-4}}));
  EXPECT_TRUE(losses({type + "none"}).empty());
  EXPECT_EQ(load({type + "none"}).origins.at("model.moe.aux_loss_coeff"), "router_load_balancing_type=none");
  EXPECT_EQ(losses({type + "[aux_loss, seq_aux_loss]"}),
            (Losses{{LoadBalancing::aux_loss, 1e-4}, {LoadBalancing::seq_aux_loss, 1e-4}}));
  EXPECT_TRUE(contains(refusal({type + "none", coefficient + "0.1"}), "which is none; or set it to 0"));
  EXPECT_TRUE(contains(refusal({type + "[aux_loss, seq_aux_loss]", coefficient + "0.1"}), "aux_loss_coeff=[a, b]"));
  LoadedConfig loaded = load({});
  apply_overrides(loaded, std::vector<std::string>{type + "none"});
  EXPECT_EQ(loaded.config.model.moe.aux_loss_coeff, std::vector<double>{0});
  const tera::Setup setup = resolve(load({type + "none"}).config);
  EXPECT_EQ(resolve(load_config_text(resolved_yaml(setup), "text").config), setup);
}

TEST_F(SmallDeepSeek, AZeroThatWasGivenIsNotCalledMissing) {
  EXPECT_EQ(refusal({"model.moe.router_group_topk=0"}),
            "model.moe.router_group_topk=0 (command line): must not be 0; router_num_groups and router_group_topk go "
            "together; for no groups, set both to 0");
  EXPECT_TRUE(contains(refusal({"model.moe.router_num_groups=0"}), "router_num_groups=0 (command line): must not be"));
  EXPECT_EQ(losses({"model.moe.router_num_groups=0", "model.moe.router_group_topk=0"}), losses({}));
  EXPECT_EQ(refusal({"model.moe.num_experts=0"}),
            "model.moe.num_experts=0 (command line): must not be 0; a deepseek_v3 has experts");
  EXPECT_EQ(refusal({"optimizer.lr=0"}),
            "optimizer.lr=0 (command line): must not be 0; it is the peak learning rate, such as 3e-4");
  EXPECT_TRUE(contains(refusal({"model.num_layers=0"}), "model.num_layers=0 (command line): must not be 0; expected:"));
  EXPECT_TRUE(contains(refusal({"model.moe.router_score_function=softmax"}),
                       "router_enable_expert_bias=true (default of model.arch=deepseek_v3): needs "
                       "router_score_function=sigmoid; or set it to false"));
}

// The bias is a tensor of the model's files; the expert shares of the last step are in checkpoints alone.
TEST(ResolveMoe, BiasAndSharesOfExpertsAsTensors) {
  ModelShape model = resolve(small()).model;
  model.moe->router.expert_bias = true;
  model.moe->losses = {{LoadBalancing::global_aux_loss, 0.1}};
  std::set<std::string> weights, all;
  for (const ModelTensor& tensor : weights_of(model)) weights.insert(tensor.name);
  for (const ModelTensor& tensor : list_tensors(model)) {
    all.insert(tensor.name);
    const bool router_state =
        contains(tensor.name, "e_score_correction_bias") || contains(tensor.name, "expert_shares");
    EXPECT_EQ(tensor.router_state, router_state) << tensor.name;
    EXPECT_EQ(tensor.trained, !router_state) << tensor.name;
  }
  const auto layers = static_cast<std::size_t>(std::count(model.moe->layers.begin(), model.moe->layers.end(), true));
  std::size_t biases = 0, shares = 0;
  for (const std::string& name : all) {
    biases += name.ends_with("gate.e_score_correction_bias");
    shares += name.starts_with("optimizer.expert_shares.model.layers.") && name.ends_with("gate");
  }
  EXPECT_EQ(biases, layers);
  EXPECT_EQ(shares, layers);
  EXPECT_EQ(weights.size(), all.size() - layers);
}

// Running two microbatches together needs rows that are sent between ranks, and layers that run in phases.
TEST(ResolveMoe, OverlapOfExpertCommNamesWhatItNeeds) {
  const auto with = [](auto change) {
    return [change](RunConfig& config, MoeConfig&) {
      config.comm_overlap.overlap_moe_expert_parallel_comm = true;
      config.dist.expert_model_parallel_size = 2;
      change(config);
    };
  };
  const auto expect = [&](std::string_view words, auto change) {
    expect_broken("comm_overlap.overlap_moe_expert_parallel_comm=true", words, with(change), /*world=*/2);
  };
  expect("needs dist.expert_model_parallel_size of at least 2",
         [](RunConfig& c) { c.dist.expert_model_parallel_size = 1; });
  expect("recompute_granularity=full plays as one; selective works",
         [](RunConfig& c) { c.model.recompute_granularity = RecomputeGranularity::full; });
  expect("model.offload_modules has no buffers; leave that empty",
         [](RunConfig& c) { c.model.offload_modules = {"attn_norm"}; });
  expect("optim_grads works",
         [](RunConfig& c) { c.ddp.data_parallel_sharding_strategy = Sharding::optim_grads_params; });
  expect("a llama has no experts", [](RunConfig& c) {
    c.model.arch = &family_named("llama");
    c.model.moe = {};
    c.dist.expert_model_parallel_size = 1;
  });
}

TEST(ResolveMoe, AsManyExpertsAsRoutersSupport) {
  expect_broken("model.moe.num_experts", "512", [](RunConfig&, MoeConfig& moe) { moe.num_experts = 513; });
  expect_broken("model.moe.router_topk", "32", [](RunConfig&, MoeConfig& moe) {
    moe.num_experts = 64;
    moe.router_topk = 33;
  });
}

}  // namespace
}  // namespace tera::test
