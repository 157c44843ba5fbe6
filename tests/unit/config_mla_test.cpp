// model.mla: what follows from the keys, what families set, and every rule they can break.

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "tera/base/error.h"
#include "tera/config/family.h"
#include "tera/models/flops.h"
#include "tera/models/spec.h"
#include "tera/setup/resolve.h"
#include "tests/support/expect_error.h"

namespace tera::test {
namespace {

using Change = std::function<void(RunConfig&, MlaConfig&)>;

RunConfig small(std::string_view arch = "llama") {
  RunConfig config;
  config.model.arch = &family_named(arch);
  family_named(arch).defaults(config.model);
  config.model.num_layers = 6;
  config.model.hidden_size = 96;
  config.model.ffn_hidden_size = 192;
  config.model.num_attention_heads = 6;
  config.model.multi_latent_attention = true;
  config.train.train_iters = 100;
  config.train.seq_length = 32;
  config.optimizer.lr = 1e-3;
  return config;
}

ModelShape shape_of(const Change& change, std::string_view arch = "llama") {
  RunConfig config = small(arch);
  change(config, config.model.mla);
  return resolve(config).model;
}

void expect_broken(std::string_view key, std::string_view words, const Change& change) {
  const std::string message = message_of<UserError>([&] { shape_of(change); });
  EXPECT_TRUE(contains(message, key) && contains(message, words)) << message;
  EXPECT_FALSE(contains(message, "\n")) << "one mistake, one line: " << message;
}

const Change nothing = [](RunConfig&, MlaConfig&) {};

TEST(ResolveMla, HeadsHaveTheSizesOfTheKeys) {
  const ModelShape model = shape_of([](RunConfig&, MlaConfig& m) {
    m = {.q_lora_rank = 24, .kv_lora_rank = 16, .qk_head_dim = 12, .qk_pos_emb_head_dim = 4, .v_head_dim = 10};
  });
  EXPECT_EQ(*model.mla, (MlaShape{.q_lora = 24, .kv_lora = 16, .nope = 12, .rotary = 4, .values = 10}));
  EXPECT_EQ(model.head_dim, 16);
  EXPECT_EQ(model.kv_heads, 6);
  EXPECT_EQ(model.rope.rotary_dim, 4);
  EXPECT_EQ(model.rope.scaling.type, RopeScalingKind::none);
  EXPECT_FALSE(resolve([] {
                 RunConfig config = small();
                 config.model.multi_latent_attention = false;
                 return config;
               }())
                   .model.mla.has_value());
}

TEST(ResolveMla, FamiliesHaveTheirs) {
  const Change expert_groups = [](RunConfig& c, MlaConfig&) { c.model.moe.router_enable_expert_bias = false; };
  const ModelShape v3 = shape_of(expert_groups, "deepseek_v3"), v2 = shape_of(nothing, "deepseek_v2");
  EXPECT_EQ(*v3.mla, (MlaShape{.q_lora = 1536, .kv_lora = 512, .nope = 128, .rotary = 64, .values = 128}));
  EXPECT_EQ(v2.mla->q_lora, 0);
  EXPECT_TRUE(v3.rope.interleaved && v2.rope.interleaved);
  EXPECT_EQ(
      v3.moe->router,
      (RouterShape{
          .score = ScoreFunction::sigmoid, .topk = 8, .scale = 2.5f, .groups = 8, .group_topk = 4, .group_best = 2}));
  EXPECT_EQ(v2.moe->router, (RouterShape{.topk = 6, .renormalize = false}));
  EXPECT_EQ(v3.moe->layers, (std::vector<bool>{0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(v2.moe->layers, (std::vector<bool>{0, 1, 1, 1, 1, 1}));
  EXPECT_EQ(v3.moe->losses, (std::vector<BalanceLoss>{{LoadBalancing::seq_aux_loss, 1e-4}}));
  EXPECT_TRUE(shape_of(nothing, "deepseek_v3").moe->router.expert_bias);
}

TEST(ResolveMla, YarnIsAKeyOfItsOwn) {
  const Change yarn = [](RunConfig& c, MlaConfig& m) {
    c.model.max_position_embeddings = 160;
    m.rotary_scaling_factor = 40;
    m.mscale_all_dim = 0.5;
  };
  const RopeScaling scaling = shape_of(yarn).rope.scaling;
  EXPECT_EQ(scaling, (RopeScaling{.type = RopeScalingKind::yarn,
                                  .factor = 40,
                                  .original_max_position_embeddings = 160,
                                  .mscale = 1,
                                  .mscale_all_dim = 0.5}));
}

TEST(ResolveMla, BrokenRules) {
  expect_broken("model.mla.qk_pos_emb_head_dim=5", "make it even",
                [](RunConfig&, MlaConfig& m) { m.qk_pos_emb_head_dim = 5; });
  expect_broken("model.mla.v_head_dim=200", "together, which are 192",
                [](RunConfig&, MlaConfig& m) { m.v_head_dim = 200; });
  expect_broken("model.mla.beta_fast=1", "must be above beta_slow, which is 1", [](RunConfig&, MlaConfig& m) {
    m.rotary_scaling_factor = 2;
    m.beta_fast = 1;
  });
  expect_broken("model.mla.kv_lora_rank=0", "must be from 1", [](RunConfig&, MlaConfig& m) { m.kv_lora_rank = 0; });
  expect_broken("model.kv_channels=16", "keys of model.mla",
                [](RunConfig& c, MlaConfig&) { c.model.kv_channels = 16; });
  expect_broken("model.num_query_groups=2", "keys and values of its own",
                [](RunConfig& c, MlaConfig&) { c.model.num_query_groups = 2; });
  expect_broken("model.rotary_percent=0.5", "leave it 1",
                [](RunConfig& c, MlaConfig&) { c.model.rotary_percent = 0.5; });
  expect_broken("model.rope_scaling.type=linear", "rotary_scaling_factor", [](RunConfig& c, MlaConfig&) {
    c.model.rope_scaling = {.type = RopeScalingKind::linear, .factor = 2};
  });
  expect_broken("model.qk_layernorm=true", "it is the latents that have norms",
                [](RunConfig& c, MlaConfig&) { c.model.qk_layernorm = true; });
  expect_broken("model.add_bias_linear=true", "add_qkv_bias",
                [](RunConfig& c, MlaConfig&) { c.model.add_bias_linear = true; });
  expect_broken("model.position_embedding_type=none", "must be rope",
                [](RunConfig& c, MlaConfig&) { c.model.position_embedding_type = PositionKind::none; });
  expect_broken("model.multi_latent_attention=true", "a gpt has none",
                [](RunConfig& c, MlaConfig&) { c.model.arch = &family_named("gpt"); });
  expect_broken("model.mla.q_lora_rank=8", "needs model.multi_latent_attention=true", [](RunConfig& c, MlaConfig& m) {
    c.model.multi_latent_attention = false;
    m.q_lora_rank = 8;
  });
  expect_broken("model.mla.qk_head_dim=200", "up to 256 channels", [](RunConfig& c, MlaConfig& m) {
    c.dist.device = DeviceChoice::cuda;
    m.qk_head_dim = 200;
  });
}

TEST(ResolveMla, ProjectionsOfLatentsMayBeDoneAgain) {
  const auto recomputed = [](bool latents, const char* offloaded) {
    return [=](RunConfig& c, MlaConfig&) {
      c.model.multi_latent_attention = latents;
      c.model.recompute_granularity = RecomputeGranularity::selective;
      c.model.recompute_modules = {"mla_up_proj"};
      if (offloaded != nullptr) c.model.offload_modules = {offloaded};
    };
  };
  EXPECT_TRUE(shape_of(recomputed(true, nullptr)).recompute.mla_up_proj);
  const OffloadShape attention = shape_of(recomputed(true, "attention")).offload;
  EXPECT_TRUE(attention.attn_proj && attention.qkv_linear && !attention.core_attn);
  expect_broken("model.recompute_modules", "mla_up_proj needs multi_latent_attention", recomputed(false, nullptr));
  expect_broken("model.offload_modules", "recompute_modules names mla_up_proj", recomputed(true, "core_attn"));
}

// 6 for each weight that a token passes, and half the sequence's scores and sums of values, three times.
TEST(ResolveMla, FlopsOfAToken) {
  const auto model = [](std::int64_t q_lora) {
    return shape_of([&](RunConfig& c, MlaConfig& m) {
      c.model.num_layers = 1;
      c.model.vocab_size = 512;
      m = {.q_lora_rank = q_lora, .kv_lora_rank = 16, .qk_head_dim = 12, .qk_pos_emb_head_dim = 4, .v_head_dim = 10};
    });
  };
  const double shared = 96 * (16 + 4) + 16 * 6 * (12 + 10) + 6 * 10 * 96 + 3 * 96 * 192 + 96 * 512;
  const double attention = 3 * 32 * 6 * (16 + 10);
  EXPECT_DOUBLE_EQ(model_flops_per_token(model(0), 32), 6 * (shared + 96 * 6 * 16) + attention);
  EXPECT_DOUBLE_EQ(model_flops_per_token(model(24), 32), 6 * (shared + 24 * (96 + 6 * 16)) + attention);
}

}  // namespace
}  // namespace tera::test
