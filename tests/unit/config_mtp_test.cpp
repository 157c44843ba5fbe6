// model.mtp_num_layers: what follows from it, and every rule it can break.

#include <gtest/gtest.h>

#include <functional>

#include "tera/base/error.h"
#include "tera/config/family.h"
#include "tera/models/flops.h"
#include "tera/models/spec.h"
#include "tera/nn/ffn/mlp.h"
#include "tera/nn/ffn/moe.h"
#include "tera/nn/mixers/attention.h"
#include "tera/setup/resolve.h"
#include "tests/support/expect_error.h"

namespace tera::test {
namespace {

using Change = std::function<void(RunConfig&)>;

ModelShape shape_of(const Change& change, std::string_view arch = "llama") {
  RunConfig config;
  config.model.arch = &family_named(arch);
  family_named(arch).defaults(config.model);
  config.model.num_layers = 3;
  config.model.hidden_size = 48;
  config.model.ffn_hidden_size = 80;
  config.model.num_attention_heads = 6;
  config.model.vocab_size = 300;
  config.train.train_iters = 100;
  config.train.seq_length = 32;
  config.optimizer.lr = 1e-3;
  change(config);
  return resolve(config).model;
}

void expect_broken(std::string_view key, std::string_view words, const Change& change,
                   std::string_view arch = "llama") {
  const std::string message = message_of<UserError>([&] { shape_of(change, arch); });
  EXPECT_TRUE(contains(message, key) && contains(message, words)) << message;
  EXPECT_FALSE(contains(message, "\n")) << "one mistake, one line: " << message;
}

TEST(ResolveMtp, LayersAreLikeTheLast) {
  const ModelShape model = shape_of([](RunConfig& c) {
    c.model.mtp_num_layers = 2;
    c.model.window_size = 4;
    c.model.layer_types = {"full_attention", "full_attention", "sliding_attention"};
  });
  EXPECT_EQ(model.mtp_layers, 2);
  EXPECT_EQ(model.mtp_loss_factor, 0.1);
  const ModelSpec spec = make_spec(model, 1);
  ASSERT_EQ(spec.layers.size(), 3u);
  ASSERT_EQ(spec.mtp.size(), 2u);
  const MtpSpec& second = spec.mtp[1];
  const SublayerSpec& mixer = second.layer.sublayers[0];
  EXPECT_EQ(mixer.branches[0].branch.as<AttentionSpec>()->window, 4);
  EXPECT_EQ(mixer.norm->name, "model.layers.4.input_layernorm");
  EXPECT_EQ(second.input.project.name, "model.layers.4.eh_proj");
  EXPECT_EQ(second.input.embedding.name, "model.embed_tokens");
  EXPECT_EQ(second.head.norm.name, "model.layers.4.shared_head.norm");
  EXPECT_TRUE(make_spec(shape_of([](RunConfig&) {}), 1).mtp.empty());
}

TEST(ResolveMtp, ExpertsOfAnMtpLayerAreCountedAfterAllOthers) {
  const auto change = [](RunConfig& c) {
    c.model.num_query_groups = 0;
    c.model.mtp_num_layers = 2;
    c.model.moe.num_experts = 4;
    c.model.moe.router_topk = 2;
    c.model.moe.first_k_dense = 1;
  };
  const ModelShape model = shape_of(change, "qwen3_moe");
  EXPECT_EQ(model.expert_layers(), 4);
  const ModelSpec spec = make_spec(model, 1);
  const auto ffn_of = [](const LayerSpec& layer) { return layer.sublayers[1].branches[0].branch; };
  ASSERT_TRUE(ffn_of(spec.layers[2]).as<MoeSpec>());
  EXPECT_EQ(ffn_of(spec.layers[2]).as<MoeSpec>()->router.layer, 1);
  EXPECT_EQ(ffn_of(spec.mtp[1].layer).as<MoeSpec>()->router.layer, 3);
  const ModelShape dense_end = shape_of(
      [&](RunConfig& c) {
        change(c);
        c.model.moe.mlp_only_layers = {2};
      },
      "qwen3_moe");
  EXPECT_EQ(dense_end.expert_layers(), 1);
  EXPECT_TRUE(ffn_of(make_spec(dense_end, 1).mtp[0].layer).as<MlpSpec>());
}

TEST(ResolveMtp, RulesThatCanBeBroken) {
  expect_broken(
      "model.mtp_num_layers", "needs position_embedding_type=rope or none",
      [](RunConfig& c) { c.model.mtp_num_layers = 1; }, "gpt");
  expect_broken("model.mtp_num_layers", "train.seq_length=4; at most 3 do", [](RunConfig& c) {
    c.model.mtp_num_layers = 4;
    c.train.seq_length = 4;
  });
  expect_broken("model.mtp_num_layers", "must be from 0 to 16", [](RunConfig& c) { c.model.mtp_num_layers = 17; });
  expect_broken("model.mtp_loss_scaling_factor", "needs mtp_num_layers, which is 0",
                [](RunConfig& c) { c.model.mtp_loss_scaling_factor = 0.3; });
}

// Megatron-LM's count: a layer more, a head more, and 3 H + 2 H^2 for the norms and the projection.
TEST(ResolveMtp, FlopsOfAToken) {
  const auto model = [](std::int64_t layers) {
    return shape_of([&](RunConfig& c) { c.model.mtp_num_layers = layers; });
  };
  const double layer = 6 * (4 * 48 * 48 + 3 * 48 * 80) + 3 * 32 * 2 * 48, head = 6 * 48 * 300;
  EXPECT_DOUBLE_EQ(model_flops_per_token(model(0), 32), 3 * layer + head);
  EXPECT_DOUBLE_EQ(model_flops_per_token(model(2), 32), 5 * layer + 3 * head + 2 * 6 * (3 * 48 + 2 * 48 * 48));
}

}  // namespace
}  // namespace tera::test
