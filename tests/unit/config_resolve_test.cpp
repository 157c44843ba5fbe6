// What a configuration resolves to, and every rule it can break.

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "tera/base/error.h"
#include "tera/config/family.h"
#include "tera/setup/resolve.h"
#include "tests/support/expect_error.h"

namespace tera::test {
namespace {

RunConfig small(std::string_view arch = "llama") {
  RunConfig config;
  config.model.arch = &family_named(arch);
  family_named(arch).defaults(config.model);
  config.model.num_layers = 4;
  config.model.hidden_size = 96;
  config.model.num_attention_heads = 6;
  config.model.kv_channels = 0;
  config.train.train_iters = 100;
  config.train.seq_length = 32;
  config.optimizer.lr = 1e-3;
  return config;
}

// Changes one thing in a good configuration; the message must name the key and hold the words.
template <class Change>
void expect_broken(std::string_view key, std::string_view words, Change&& change) {
  RunConfig config = small();
  change(config);
  const std::string message = message_of<UserError>([&] { resolve(config); });
  EXPECT_TRUE(contains(message, key) && contains(message, words)) << message;
  EXPECT_FALSE(contains(message, "\n")) << "one mistake, one line: " << message;
}

TEST(Resolve, DerivesSizes) {
  RunConfig config = small();
  config.train.micro_batch_size = 3;
  const tera::Setup setup = resolve(config);
  EXPECT_EQ(setup.model.ffn, 256 / 64 * 64);  // 8 x 96 / 3 = 256
  EXPECT_EQ(setup.model.kv_heads, 6);
  EXPECT_EQ(setup.model.head_dim, 16);
  EXPECT_EQ(setup.model.vocab, 512);
  EXPECT_EQ(setup.model.padded_vocab, 512);
  EXPECT_EQ(setup.model.max_positions, 32);
  EXPECT_EQ(setup.model.rope.rotary_dim, 16);
  EXPECT_EQ(setup.model.window, (std::vector<std::int64_t>{0, 0, 0, 0}));
  EXPECT_FALSE(setup.model.tied_embeddings);
  EXPECT_EQ(setup.batch.global_batch, 3);
  EXPECT_EQ(setup.batch.num_microbatches, 1);
  EXPECT_EQ(setup.schedule.decay_samples, 300);
  EXPECT_EQ(setup.run_dir, "runs/run");
  EXPECT_EQ(setup.config, config) << "what the user wrote stays as written";
}

TEST(Resolve, DerivesFeedForwardWidths) {
  RunConfig config = small("gpt");
  EXPECT_EQ(resolve(config).model.ffn, 384);
  config = small();
  config.model.hidden_size = 4096;
  config.model.num_attention_heads = 32;
  EXPECT_EQ(resolve(config).model.ffn, 10880);  // 10922 down to a multiple of 64
}

TEST(Resolve, PadsTheVocabulary) {
  RunConfig config = small();
  config.model.vocab_size = 50257;
  EXPECT_EQ(resolve(config).model.padded_vocab, 50304);
  config.model.make_vocab_size_divisible_by = 1;
  EXPECT_EQ(resolve(config).model.padded_vocab, 50257);
}

TEST(Resolve, GivesWindowsToTheUpperLayers) {
  RunConfig config = small("qwen2");
  config.model.window_size = 7;
  config.model.max_window_layers = 3;
  EXPECT_EQ(resolve(config).model.window, (std::vector<std::int64_t>{0, 0, 0, 7}));
  config.model.max_window_layers = 70;
  EXPECT_EQ(resolve(config).model.window, (std::vector<std::int64_t>{0, 0, 0, 0}));
}

TEST(Resolve, FamiliesDiffer) {
  const ModelShape gpt = resolve(small("gpt")).model;
  EXPECT_TRUE(gpt.linear_bias && gpt.qkv_bias && gpt.tied_embeddings);
  EXPECT_EQ(gpt.norm, NormKind::layer_norm);
  EXPECT_EQ(gpt.positions, PositionKind::learned_absolute);
  EXPECT_FLOAT_EQ(gpt.hidden_dropout, 0.1f);
  const ModelShape qwen2 = resolve(small("qwen2")).model;
  EXPECT_TRUE(!qwen2.linear_bias && qwen2.qkv_bias && !qwen2.qk_norm);
  EXPECT_FLOAT_EQ(qwen2.norm_eps, 1e-6f);
  EXPECT_TRUE(resolve(small("qwen3")).model.qk_norm);
  EXPECT_EQ(resolve(small("mistral")).model.window[0], 4096);
}

TEST(Resolve, CountsIterationsFromSamples) {
  RunConfig config = small();
  config.train.train_iters = 0;
  config.train.train_samples = 103;
  config.train.global_batch_size = 10;
  EXPECT_EQ(resolve(config).batch.train_iters, 10);
  EXPECT_EQ(resolve(config).batch.num_microbatches, 10);
}

TEST(Resolve, SplitsData) {
  RunConfig config = small();
  const SplitShape defaults = resolve(config).split;
  EXPECT_DOUBLE_EQ(defaults.train, 0.969);
  EXPECT_DOUBLE_EQ(defaults.valid, 0.03);
  EXPECT_DOUBLE_EQ(defaults.test, 0.001);
  config.dataset.split = "3,1";
  EXPECT_DOUBLE_EQ(resolve(config).split.valid, 0.25);
  config.dataset.split = "1";
  EXPECT_EQ(resolve(config).split, (SplitShape{.train = 1, .valid = 0, .test = 0}));
  config.dataset.split = "0.5,1.5";
  EXPECT_EQ(resolve(config).split, (SplitShape{.train = 0.25, .valid = 0.75, .test = 0}));
  for (const char* bad : {"", ",", "1,", "0,0,0", "1,2,3,4", "1,,2", "a", "-1,2", "nan", "1,2,", "inf,1", "inf", "1 ,2",
                          "1;2", "1e308,1e308"})
    expect_broken("dataset.split", "up to three weights", [&](RunConfig& c) { c.dataset.split = bad; });
}

TEST(Resolve, SelectsRecomputation) {
  RunConfig config = small();
  config.model.recompute_granularity = RecomputeGranularity::full;
  EXPECT_EQ(resolve(config).model.recompute, (RecomputeShape{.full = true}));
  config.model.recompute_granularity = RecomputeGranularity::selective;
  config.model.recompute_modules = {"activation"};
  EXPECT_EQ(resolve(config).model.recompute, (RecomputeShape{.activation = true}));
}

TEST(Resolve, NamesOfMegatronAreTranslated) {
  const auto expect_recompute = [](const char* name, const char* words) {
    expect_broken("model.recompute_modules", words, [&](RunConfig& c) {
      c.model.recompute_granularity = RecomputeGranularity::selective;
      c.model.recompute_modules = {name};
    });
  };
  expect_recompute("core_attn",
                   "'core_attn' is not layernorm, activation or mla_up_proj; scores of attention are never");
  expect_recompute("moe_act", "; it is part of activation");
  for (const char* name : {"mlp", "moe", "shared_experts"})
    expect_recompute(name, "recompute_granularity=full makes whole layers");
  const auto expect_offload = [](const char* name, const char* words) {
    expect_broken("model.offload_modules", words, [&](RunConfig& c) { c.model.offload_modules = {name}; });
  };
  expect_offload("expert_fc1", "; mlp_fc1 is that of experts");
  expect_offload("moe_act", "; mlp_act is that of experts");
  expect_offload("fused_group_mlp", "; mlp is that of experts");
  expect_offload("layernorm", "; the inputs of norms are attn_norm and mlp_norm");
}

TEST(Resolve, SelectsWhatIsOffloaded) {
  RunConfig config = small();
  EXPECT_EQ(resolve(config).model.offload, OffloadShape{});
  config.model.offload_modules = {"attn_norm", "mlp_act"};
  EXPECT_EQ(resolve(config).model.offload, (OffloadShape{.attn_norm = true, .mlp_act = true}));
  config.model.offload_modules = {"attention"};
  EXPECT_EQ(resolve(config).model.offload, (OffloadShape{.qkv_linear = true, .core_attn = true, .attn_proj = true}));
  config.model.offload_modules = {"mlp"};
  EXPECT_EQ(resolve(config).model.offload, (OffloadShape{.mlp_fc1 = true, .mlp_act = true, .mlp_fc2 = true}));
  config.model.recompute_granularity = RecomputeGranularity::selective;
  config.model.recompute_modules = {"activation", "layernorm"};  // mlp is then what is still kept of it
  EXPECT_EQ(resolve(config).model.offload, (OffloadShape{.mlp_act = true}));
}

TEST(Resolve, WhatIsNotKeptCannotBeOffloaded) {
  const auto expect_refused = [](const char* rule, std::vector<std::string> offload, const auto& change) {
    expect_broken("model.offload_modules", rule, [&](RunConfig& c) {
      c.model.offload_modules = offload;
      change(c.model);
    });
  };
  expect_refused(
      "'mlp.up' is not attn_norm, qkv_linear, core_attn, attn_proj, mlp_norm, mlp_fc1, mlp_act, mlp_fc2, "
      "attention or mlp",
      {"attn_norm", "mlp.up"}, [](ModelConfig&) {});
  const auto full = [](ModelConfig& m) { m.recompute_granularity = RecomputeGranularity::full; };
  expect_refused("all that a layer keeps is its input, attn_norm; not 'core_attn'", {"attn_norm", "core_attn"}, full);
  expect_refused("all that a layer keeps is its input, attn_norm; not 'mlp'", {"mlp"}, [&](ModelConfig& m) {
    full(m);
    m.recompute_method = RecomputeMethod::block;
  });
  const auto selective = [](ModelConfig& m) {
    m.recompute_granularity = RecomputeGranularity::selective;
    m.recompute_modules = {"layernorm", "activation"};
  };
  expect_refused("'qkv_linear' is not kept, because recompute_modules names layernorm", {"qkv_linear"}, selective);
  expect_refused("'mlp_fc1' is not kept, because recompute_modules names layernorm", {"mlp_fc1"}, selective);
  expect_refused("'mlp_fc2' is not kept, because recompute_modules names activation", {"mlp_fc2"}, selective);

  RunConfig some_layers = small();  // the other layers keep all
  full(some_layers.model);
  some_layers.model.recompute_method = RecomputeMethod::block;
  some_layers.model.recompute_num_layers = 1;
  some_layers.model.offload_modules = {"core_attn"};
  EXPECT_TRUE(resolve(some_layers).model.offload.core_attn);
}

TEST(Resolve, InspectionLeavesTheRunOpen) {
  RunConfig config = small();
  config.train.train_iters = 0;
  config.optimizer.lr = 0;
  config.dataset.kind = DatasetKind::text;
  EXPECT_EQ(resolve(config, Purpose::inspect).batch.train_iters, 0);
  const std::string message = message_of<UserError>([&] { resolve(config); });
  EXPECT_TRUE(contains(message, "3 problems") && contains(message, "train.train_iters is not given") &&
              contains(message, "optimizer.lr is not given") && contains(message, "dataset.data_path is not given"))
      << message;
}

TEST(Resolve, LossScales) {
  expect_broken("mixed_precision.min_loss_scale=8", "must be at most mixed_precision.initial_loss_scale=4",
                [](RunConfig& c) {
                  c.mixed_precision.initial_loss_scale = 4;
                  c.mixed_precision.min_loss_scale = 8;
                });
  expect_broken("mixed_precision.loss_scale=1e-10", "must be 0, or at least 1e-06",
                [](RunConfig& c) { c.mixed_precision.loss_scale = 1e-10; });
  expect_broken("mixed_precision.loss_scale=-1", "from 0 to 1e+36",
                [](RunConfig& c) { c.mixed_precision.loss_scale = -1; });
  expect_broken("mixed_precision.initial_loss_scale=0", "from 1e-06 to 1e+36",
                [](RunConfig& c) { c.mixed_precision.initial_loss_scale = 0; });
  expect_broken("mixed_precision.min_loss_scale=0", "from 1e-06",
                [](RunConfig& c) { c.mixed_precision.min_loss_scale = 0; });
  expect_broken("mixed_precision.loss_scale_window=0", "from 1 to",
                [](RunConfig& c) { c.mixed_precision.loss_scale_window = 0; });
  expect_broken("mixed_precision.hysteresis=0", "from 1 to", [](RunConfig& c) { c.mixed_precision.hysteresis = 0; });
}

TEST(ResolveModelRules, Heads) {
  expect_broken("model.num_attention_heads=5",
                "divide hidden_size, which is 96, unless kv_channels is given; nearest: 4 or 6",
                [](RunConfig& c) { c.model.num_attention_heads = 5; });
  expect_broken("model.num_query_groups=4", "nearest: 3 or 6", [](RunConfig& c) { c.model.num_query_groups = 4; });
  expect_broken("model.num_query_groups=12", "nearest: 6", [](RunConfig& c) { c.model.num_query_groups = 12; });
  expect_broken("model.kv_channels=15", "pairs of channels", [](RunConfig& c) { c.model.kv_channels = 15; });
  expect_broken("model.rotary_percent=0.2", "3 of each head's 16", [](RunConfig& c) { c.model.rotary_percent = 0.2; });
  RunConfig config = small();
  config.model.num_attention_heads = 5;
  config.model.kv_channels = 32;
  EXPECT_EQ(resolve(config).model.head_dim, 32);
  config.model.rotary_percent = 0.5;
  EXPECT_EQ(resolve(config).model.rope.rotary_dim, 16);
}

TEST(ResolveModelRules, MissingAndImpossibleSizes) {
  expect_broken("model.arch is not given", "gpt, llama", [](RunConfig& c) { c.model.arch = nullptr; });
  expect_broken("model.num_layers is not given", "whole number", [](RunConfig& c) { c.model.num_layers = 0; });
  expect_broken("model.num_layers=-1", "from 1 to 100000", [](RunConfig& c) { c.model.num_layers = -1; });
  expect_broken("model.hidden_size=9223372036854775807", "from 1 to 16777216",
                [](RunConfig& c) { c.model.hidden_size = std::numeric_limits<std::int64_t>::max(); });
  expect_broken("model.vocab_size", "to 2147483647", [](RunConfig& c) { c.model.vocab_size = std::int64_t{1} << 31; });
  expect_broken("model.hidden_size=16777216", "more than can be counted", [](RunConfig& c) {
    c.model.hidden_size = c.model.ffn_hidden_size = 1 << 24;
    c.model.num_attention_heads = 1 << 10;
    c.model.num_layers = 100000;
  });
  expect_broken("model.ffn_hidden_size is not given", "too small", [](RunConfig& c) {
    c.model.hidden_size = 12;
    c.model.num_attention_heads = 2;
  });
}

TEST(ResolveModelRules, ActivationsThatCannotBeAddressed) {
  const char* const words = "more memory than can be addressed";
  expect_broken("train.seq_length=2147483647", words, [](RunConfig& c) {
    c.model.hidden_size = 32;
    c.model.ffn_hidden_size = 64;
    c.model.num_attention_heads = c.model.kv_channels = 1 << 24;
    c.train.seq_length = (1LL << 31) - 1;
  });
  expect_broken("train.seq_length", words, [](RunConfig& c) {  // logits
    c.model.vocab_size = c.train.seq_length = (1LL << 31) - 1;
  });
  expect_broken("train.seq_length", words, [](RunConfig& c) {
    c.model.ffn_hidden_size = 1 << 24;
    c.train.micro_batch_size = 1 << 25;
  });
}

TEST(ResolveModelRules, Vocabulary) {
  expect_broken("model.vocab_size=100", "smaller than ByteTokenizer's vocabulary, which is 512", [](RunConfig& c) {
    c.model.vocab_size = 100;
    c.dataset.kind = DatasetKind::text;
    c.dataset.data_path = {"a.txt"};
  });
  expect_broken("model.vocab_size is not given", "NullTokenizer",
                [](RunConfig& c) { c.tokenizer.tokenizer_type = TokenizerKind::null; });
}

TEST(ResolveModelRules, Numbers) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  expect_broken("model.layernorm_epsilon", "finite", [&](RunConfig& c) { c.model.layernorm_epsilon = nan; });
  expect_broken("model.layernorm_epsilon", "from 1e-12 to 1", [](RunConfig& c) { c.model.layernorm_epsilon = 0; });
  expect_broken("model.hidden_dropout", "from 0 to 0.99", [](RunConfig& c) { c.model.hidden_dropout = 1; });
  expect_broken("model.attention_dropout", "from 0 to 0.99", [](RunConfig& c) { c.model.attention_dropout = -0.1; });
  expect_broken("model.rotary_base", "above 1", [](RunConfig& c) { c.model.rotary_base = 1; });
  expect_broken("model.init_method_std", "from 0 to 100", [](RunConfig& c) { c.model.init_method_std = -1; });
}

TEST(ResolveModelRules, Positions) {
  expect_broken("train.seq_length=32", "longer than model.max_position_embeddings, which is 16",
                [](RunConfig& c) { c.model.max_position_embeddings = 16; });
  expect_broken("model.rope_scaling.type=yarn", "position_embedding_type=rope", [](RunConfig& c) {
    c.model.rope_scaling.type = RopeScalingKind::yarn;
    c.model.position_embedding_type = PositionKind::none;
  });
  expect_broken("model.rope_scaling.factor=2", "needs rope_scaling.type",
                [](RunConfig& c) { c.model.rope_scaling.factor = 2; });
  expect_broken("model.rope_scaling.high_freq_factor", "above low_freq_factor", [](RunConfig& c) {
    c.model.rope_scaling = {.type = RopeScalingKind::llama3, .factor = 8, .low_freq_factor = 4, .high_freq_factor = 4};
  });
  expect_broken("model.rope_scaling.beta_fast", "above beta_slow", [](RunConfig& c) {
    c.model.rope_scaling.type = RopeScalingKind::yarn;
    c.model.rope_scaling.beta_fast = 1;
  });
  RunConfig config = small();
  config.model.rope_scaling.type = RopeScalingKind::yarn;
  EXPECT_EQ(resolve(config).model.rope.scaling.original_max_position_embeddings, 32);
}

TEST(ResolveModelRules, RecomputationAndFreezing) {
  expect_broken("model.recompute_modules is not given", "layernorm, activation or mla_up_proj",
                [](RunConfig& c) { c.model.recompute_granularity = RecomputeGranularity::selective; });
  expect_broken("model.recompute_modules", "needs recompute_granularity=selective",
                [](RunConfig& c) { c.model.recompute_modules = {"layernorm"}; });
  expect_broken("model.recompute_modules", "'mlp' is not layernorm, activation or mla_up_proj", [](RunConfig& c) {
    c.model.recompute_granularity = RecomputeGranularity::selective;
    c.model.recompute_modules = {"mlp"};
  });
  expect_broken("model.freeze", "empty pattern", [](RunConfig& c) { c.model.freeze = {""}; });
}

RunConfig growing(std::vector<std::int64_t> rampup, std::int64_t global_batch, std::int64_t samples) {
  RunConfig config = small();
  config.train.micro_batch_size = 1;
  config.train.train_iters = 0;
  config.train.train_samples = samples;
  config.train.global_batch_size = global_batch;
  config.train.rampup_batch_size = std::move(rampup);
  return config;
}

// The sizes that Megatron-LM's formulas give, by a loop over steps in Python.
TEST(ResolveRampUp, SizesAreMegatrons) {
  const auto sizes = [](const BatchShape& batch) {
    std::vector<std::int64_t> all;
    std::int64_t consumed = 0;
    for (std::int64_t i = 0; i < batch.train_iters; ++i) {
      all.push_back(batch.global_batch_at(consumed));
      EXPECT_EQ(batch.microbatches_at(consumed), all.back() / batch.micro_batch);
      consumed += all.back();
    }
    return all;
  };
  const BatchShape four = resolve(growing({4, 4, 40}, 16, 120)).batch;
  EXPECT_EQ(sizes(four), (std::vector<std::int64_t>{4, 4, 4, 4, 8, 8, 12, 16, 16, 16, 16}));
  EXPECT_EQ(four.smaller_steps(), (std::vector<std::int64_t>{4, 8, 12}));
  EXPECT_EQ(four.num_microbatches, 16);
  EXPECT_EQ(sizes(resolve(growing({2, 2, 33}, 8, 100)).batch),
            (std::vector<std::int64_t>{2, 2, 2, 2, 2, 2, 4, 4, 4, 6, 6, 8, 8, 8, 8, 8, 8, 8, 8}));
  EXPECT_EQ(resolve(growing({16, 8, 300000}, 1024, 2000000)).batch.train_iters, 2979);
  EXPECT_EQ(resolve(growing({32, 32, 977}, 192, 5000)).batch.train_iters, 35);
  EXPECT_EQ(resolve(growing({4, 4, 40}, 16, 11)).batch.train_iters, 2);
}

// The rest of a resumed run is cut into the same steps as the uninterrupted run, wherever it resumes.
TEST(ResolveRampUp, WhatIsLeftFollowsFromTheResumeOffset) {
  const BatchShape uncut = resolve(growing({4, 4, 40}, 16, 120)).batch;
  ResumeOffset resume;
  for (std::int64_t step = 0; step <= uncut.train_iters; ++step) {
    const tera::Setup rest = resolve(growing({4, 4, 40}, 16, 120), Purpose::train, nullptr, 1, resume);
    EXPECT_EQ(rest.batch.train_iters, uncut.train_iters) << step;
    resume = {resume.steps + 1, resume.samples + uncut.global_batch_at(resume.samples)};
  }
  EXPECT_EQ(resolve(growing({4, 4, 40}, 16, 120), Purpose::train, nullptr, 1, {3, 200}).batch.train_iters, 3);
}

TEST(ResolveResumeOffset, StepsToComeHaveTheSizeOfNow) {
  RunConfig config = small();
  config.train.train_iters = 20;
  config.train.micro_batch_size = 2;
  const auto after = [&](const ResumeOffset& resume) { return resolve(config, Purpose::train, nullptr, 1, resume); };
  EXPECT_EQ(after({}).batch.samples_at_end(), 40);
  EXPECT_EQ(after({12, 24}).batch.samples_at_end(), 40);
  EXPECT_EQ(after({10, 80}).batch.samples_at_end(), 100);
  EXPECT_EQ(after({10, 80}).schedule.decay_samples, 100);
  EXPECT_EQ(after({30, 90}).batch.samples_at_end(), 90);
  config.train.train_iters = 0;
  config.train.train_samples = 100;
  EXPECT_EQ(after({10, 80}).batch.train_iters, 20);
  EXPECT_EQ(after({10, 80}).schedule.decay_samples, 100);
}

TEST(ResolveRampUp, TheScheduleCountsSamples) {
  RunConfig config = growing({4, 4, 40}, 16, 120);
  config.scheduler.lr_warmup_samples = 10;
  const ScheduleShape schedule = resolve(config).schedule;
  EXPECT_EQ(schedule.warmup_samples, 10);
  EXPECT_EQ(schedule.decay_samples, 120);
}

TEST(ResolveRampUp, Rules) {
  const auto expect_refused = [](const RunConfig& config, std::string_view words) {
    EXPECT_TRUE(contains(message_of<UserError>([&] { resolve(config); }), words)) << words;
  };
  expect_refused(growing({4, 4}, 16, 120), "must be three numbers above 0");
  expect_refused(growing({4, 0, 40}, 16, 120), "must be three numbers above 0");
  expect_refused(growing({4, 5, 40}, 16, 120), "global_batch_size, which is 16, must be 4 and a positive number");
  expect_refused(growing({16, 4, 40}, 16, 120), "positive number of increments of 4");
  expect_refused(growing({1, 1, 40}, 4000, 120000), "gives 4000 sizes of a step");
  RunConfig config = growing({3, 3, 40}, 12, 120);
  config.train.micro_batch_size = 2;
  expect_refused(config, "must be multiples of micro_batch_size, which is 2");
  config = growing({4, 4, 40}, 16, 0);
  config.train.train_iters = 10;
  expect_refused(config, "needs train.train_samples");
  config = growing({4, 4, 40}, 16, 120);
  config.scheduler.lr_warmup_iters = 2;
  expect_refused(config, "scheduler.lr_warmup_iters=2: with train.rampup_batch_size steps differ in size");
  config.scheduler.lr_warmup_iters = 0;
  config.scheduler.lr_warmup_samples = 120;
  expect_refused(config, "scheduler.lr_warmup_samples=120: must be below the length of the run, which is 120");
  expect_refused(growing({4, 4, 40}, 16, 3), "less than one global batch, which is 4");
  expect_broken("scheduler.lr_decay_samples", "either this or scheduler.lr_decay_iters", [](RunConfig& c) {
    c.scheduler.lr_decay_iters = 5;
    c.scheduler.lr_decay_samples = 5;
  });
}

TEST(ResolveRunRules, Batch) {
  expect_broken("train.global_batch_size=10", "multiple of micro_batch_size, which is 4; nearest: 8 or 12",
                [](RunConfig& c) {
                  c.train.micro_batch_size = 4;
                  c.train.global_batch_size = 10;
                });
  expect_broken("train.global_batch_size=2", "nearest: 4", [](RunConfig& c) {
    c.train.micro_batch_size = 4;
    c.train.global_batch_size = 2;
  });
  expect_broken("train.train_samples", "either this or train_iters", [](RunConfig& c) { c.train.train_samples = 9; });
  expect_broken("train.train_samples=3", "less than one global batch", [](RunConfig& c) {
    c.train.train_iters = 0;
    c.train.train_samples = 3;
    c.train.global_batch_size = 4;
  });
  expect_broken("train.micro_batch_size", "tokens in a forward pass",
                [](RunConfig& c) { c.train.micro_batch_size = 1 << 30; });
  expect_broken("train.train_iters", "more than can be counted",
                [](RunConfig& c) { c.train.train_iters = std::numeric_limits<std::int64_t>::max() / 2; });
  expect_broken("train.seq_length=0", "from 1 to", [](RunConfig& c) { c.train.seq_length = 0; });
}

TEST(ResolveRunRules, Schedule) {
  expect_broken("scheduler.lr_warmup_iters=100", "below the length of the run, which is 100",
                [](RunConfig& c) { c.scheduler.lr_warmup_iters = 100; });
  expect_broken("scheduler.lr_warmup_iters=60", "below lr_decay_iters, which is 50", [](RunConfig& c) {
    c.scheduler.lr_warmup_iters = 60;
    c.scheduler.lr_decay_iters = 50;
  });
  expect_broken("optimizer.min_lr", "above lr", [](RunConfig& c) { c.optimizer.min_lr = 1; });
  expect_broken("scheduler.lr_warmup_init", "above optimizer.lr", [](RunConfig& c) { c.scheduler.lr_warmup_init = 1; });
  expect_broken("scheduler.lr_wsd_decay_iters is not given", "WSD",
                [](RunConfig& c) { c.scheduler.lr_decay_style = LrDecayStyle::wsd; });
  expect_broken("scheduler.lr_wsd_decay_iters=95", "which is 90", [](RunConfig& c) {
    c.scheduler.lr_decay_style = LrDecayStyle::wsd;
    c.scheduler.lr_warmup_iters = 10;
    c.scheduler.lr_wsd_decay_iters = 95;
  });
  // Each number alone is in range; the number of sequences is not.
  expect_broken("scheduler.lr_decay_iters=4611686018427387904", "times global_batch_size, which is 2",
                [](RunConfig& c) {
                  c.train.global_batch_size = 2;
                  c.scheduler.lr_decay_iters = std::int64_t{1} << 62;
                });
  expect_broken("scheduler.lr_wsd_decay_iters", "more sequences than can be counted",
                [](RunConfig& c) { c.scheduler.lr_wsd_decay_iters = std::numeric_limits<std::int64_t>::max(); });
  const std::string message = message_of<UserError>([] {
    RunConfig config = small();
    config.scheduler.lr_warmup_iters = std::numeric_limits<std::int64_t>::max();
    resolve(config);
  });
  EXPECT_TRUE(contains(message, "lr_warmup_iters") && contains(message, "can be counted")) << message;
  RunConfig longest = small();
  longest.train.global_batch_size = 4;
  longest.scheduler.lr_decay_iters = std::int64_t{1} << 60;
  EXPECT_EQ(resolve(longest).schedule.decay_samples, std::int64_t{1} << 62);
  expect_broken("optimizer.adam_beta2", "below 1", [](RunConfig& c) { c.optimizer.adam_beta2 = 1; });
  expect_broken("optimizer.lr", "at least 0", [](RunConfig& c) { c.optimizer.lr = -1; });
}

TEST(ResolveRunRules, MomentsInBf16) {
  const auto warnings = [](auto change) {
    RunConfig config = small();
    change(config.optimizer);
    return resolve(config).warnings;
  };
  EXPECT_TRUE(warnings([](OptimizerConfig&) {}).empty());
  EXPECT_TRUE(warnings([](OptimizerConfig& o) { o.exp_avg_dtype = MomentType::bf16; }).empty());  // 0.9
  for (const double beta : {0.95, 0.99})
    EXPECT_TRUE(warnings([&](OptimizerConfig& o) {
                  o.exp_avg_sq_dtype = MomentType::bf16;
                  o.adam_beta2 = beta;
                }).empty())
        << beta;
  for (const double beta : {0.991, 0.999}) {
    const std::vector<std::string> reported = warnings([&](OptimizerConfig& o) {
      o.exp_avg_sq_dtype = MomentType::bf16;
      o.adam_beta2 = beta;
    });
    ASSERT_EQ(reported.size(), 1u);
    EXPECT_TRUE(contains(reported[0], fmt::format("exp_avg_sq_dtype is bf16, and optimizer.adam_beta2 is {}:", beta)));
    EXPECT_TRUE(reported[0].ends_with("; set optimizer.adam_beta2=0.95, or optimizer.exp_avg_sq_dtype=fp32"))
        << reported[0];
  }
  const std::vector<std::string> first = warnings([&](OptimizerConfig& o) {
    o.exp_avg_dtype = MomentType::bf16;
    o.adam_beta1 = 0.999;
  });
  ASSERT_EQ(first.size(), 1u);
  EXPECT_TRUE(first[0].ends_with("; set optimizer.adam_beta1=0.9, or optimizer.exp_avg_dtype=fp32")) << first[0];
  for (const char* key : {"optimizer.exp_avg_dtype=bf16", "optimizer.exp_avg_sq_dtype=bf16"})
    expect_broken(key, "sgd has no such moment, and its momentum is always fp32", [&](RunConfig& c) {
      c.optimizer.optimizer = OptimizerKind::sgd;
      (contains(key, "_sq_") ? c.optimizer.exp_avg_sq_dtype : c.optimizer.exp_avg_dtype) = MomentType::bf16;
    });
}

TEST(ResolveRunRules, DataAndFolders) {
  expect_broken("dataset.data_path", "dataset.kind=mock reads no files",
                [](RunConfig& c) { c.dataset.data_path = {"a"}; });
  expect_broken("dataset.dataloader_type", "mock data has no end",
                [](RunConfig& c) { c.dataset.dataloader_type = DataloaderType::cyclic; });
  expect_broken("dataset.data_sharding", "only dataset.dataloader_type=cyclic",
                [](RunConfig& c) { c.dataset.data_sharding = false; });
  expect_broken("dataset.multiple_validation_sets", "only dataset.kind=indexed or sft has it",
                [](RunConfig& c) { c.dataset.multiple_validation_sets = true; });
  expect_broken("dataset.chat_format.user", "only dataset.kind=sft has it",
                [](RunConfig& c) { c.dataset.chat_format.user = "{content}"; });
  const auto sft = [](RunConfig& c) {
    c.dataset.kind = DatasetKind::sft;
    c.dataset.data_path = {"a.jsonl"};
  };
  expect_broken("dataset.data_path is not given", "a file of conversations",
                [](RunConfig& c) { c.dataset.kind = DatasetKind::sft; });
  expect_broken("dataset.chat_format.user", "must have {content} in it, once", [&](RunConfig& c) {
    sft(c);
    c.dataset.chat_format.user = "hello";
  });
  expect_broken("dataset.chat_format.user", "must have {content} in it, once", [&](RunConfig& c) {
    sft(c);
    c.dataset.chat_format.user = "{content}{content}";
  });
  expect_broken("dataset.reset_attention_mask", "keeps conversations apart by itself", [&](RunConfig& c) {
    sft(c);
    c.dataset.reset_attention_mask = true;
  });
  expect_broken("dataset.blend", "only dataset.kind=indexed has it", [&](RunConfig& c) {
    sft(c);
    c.dataset.blend = {{"a", 1}};
  });
  expect_broken("dataset.data_path", "dataset.kind=sft has no weights, and 0.3 is a number", [&](RunConfig& c) {
    sft(c);
    c.dataset.data_path = {"0.3", "a.jsonl"};
  });
  expect_broken("dataset.validation_set_names", "needs multiple_validation_sets=true", [&](RunConfig& c) {
    sft(c);
    c.dataset.validation_set_names = {"a"};
  });
  const auto sets = [](RunConfig& c) {
    c.dataset.kind = DatasetKind::indexed;
    c.dataset.train_data_path = {"a"};
    c.dataset.valid_data_path = {"x/b", "y/b"};
    c.dataset.multiple_validation_sets = true;
  };
  expect_broken("dataset.validation_set_names", "'b': names must differ", sets);
  expect_broken("dataset.validation_set_names", "1 names for 2 paths", [&](RunConfig& c) {
    sets(c);
    c.dataset.validation_set_names = {"one"};
  });
  expect_broken("dataset.multiple_validation_sets", "is one blend", [&](RunConfig& c) {
    sets(c);
    c.dataset.valid_data_path = {"0.5", "b", "0.5", "c"};
  });
  expect_broken("dataset.data_path", "come in pairs", [](RunConfig& c) {
    c.dataset.kind = DatasetKind::indexed;
    c.dataset.data_path = {"a", "0.3"};
  });
  expect_broken("dataset.valid_data_path", "come in pairs", [&](RunConfig& c) {
    sets(c);
    c.dataset.valid_data_path = {"a", "0.3"};
    c.dataset.validation_set_names = {"one"};
  });
  RunConfig named = small();
  sets(named);
  named.dataset.validation_set_names = {"one", "two"};
  EXPECT_EQ(resolve(named).indexed.valid_names, (std::vector<std::string>{"one", "two"}));
  named.dataset.validation_set_names = {};
  named.dataset.valid_data_path = {"x/b", "y/c"};
  EXPECT_EQ(resolve(named).indexed.valid_names, (std::vector<std::string>{"b", "c"}));
  EXPECT_TRUE([&] {
    RunConfig chat = small();
    sft(chat);
    return resolve(chat).batch.packs_documents;
  }());
  expect_broken("dataset.num_workers", "0", [](RunConfig& c) { c.dataset.num_workers = -1; });
  expect_broken("dataset.data_path", "empty path", [](RunConfig& c) {
    c.dataset.kind = DatasetKind::text;
    c.dataset.data_path = {"a", ""};
  });
  expect_broken("run.name", "plain name", [](RunConfig& c) { c.run.name = "../x"; });
  RunConfig config = small();
  config.run = {.name = "../x", .dir = "/somewhere"};
  EXPECT_EQ(resolve(config).run_dir, "/somewhere");
}

// Texts end up in JSON and YAML, long after the last chance to refuse them.
TEST(ResolveRunRules, TextsAreUtf8) {
  expect_broken("run.name=\"caf\ufffd\"", "must be UTF-8 text, but byte 3 is 0xe9",
                [](RunConfig& c) { c.run.name = "caf\xe9"; });
  expect_broken("run.dir", "byte 0 is 0xff", [](RunConfig& c) { c.run.dir = "\xff"; });
  expect_broken("checkpoint.save", "UTF-8", [](RunConfig& c) { c.checkpoint.save = "\xc3"; });
  expect_broken("model.freeze", "UTF-8", [](RunConfig& c) { c.model.freeze = {"*", "\xed\xa0\x80"}; });
  RunConfig config = small();
  config.run.name = "caf\u00e9";
  EXPECT_EQ(resolve(config).run_dir, "runs/caf\u00e9");
}

TEST(Resolve, ReportsEverythingAtOnceWithOrigins) {
  RunConfig config = small();
  config.model.num_attention_heads = 5;
  config.train.global_batch_size = 10;
  config.train.micro_batch_size = 4;
  config.optimizer.clip_grad = -1;
  const Origins origins{{"model.num_attention_heads", "a.yaml:7"}, {"optimizer.clip_grad", "command line"}};
  const std::string message = message_of<UserError>([&] { resolve(config, Purpose::train, &origins); });
  for (const char* words :
       {"3 problems", "model.num_attention_heads=5 (a.yaml:7): must divide",
        "train.global_batch_size=10 (default): must be", "optimizer.clip_grad=-1 (command line): must be"})
    EXPECT_TRUE(contains(message, words)) << message;
}

}  // namespace
}  // namespace tera::test
