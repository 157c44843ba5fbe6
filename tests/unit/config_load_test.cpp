// Sources of values, their precedence, and messages about wrong keys and types.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tera/base/error.h"
#include "tera/config/catalog.h"
#include "tera/setup/load.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace tera::test {
namespace {

using Overrides = std::vector<std::string>;

class ConfigLoad : public ::testing::Test {
 protected:
  LoadedConfig load(std::string_view text, const Overrides& overrides = {}) {
    return load_config(folder_.write("run.yaml", text).string(), overrides);
  }
  std::string refusal(std::string_view text, const Overrides& overrides = {}) {
    return message_of<UserError>([&] { load(text, overrides); });
  }
  void expect_refused(std::string_view text, std::string_view words, const Overrides& overrides = {}) {
    const std::string message = refusal(text, overrides);
    EXPECT_TRUE(contains(message, words)) << message;
  }
  void expect_bad_value(const std::string& key_and_value, std::string_view words) {
    expect_refused("model: {arch: llama}", words, {key_and_value});
  }

  TempFolder folder_;
};

TEST_F(ConfigLoad, LaterSourcesWin) {
  folder_.write("base.yaml", "model: {arch: gpt, num_layers: 1, hidden_size: 8, vocab_size: 9}\ntrain: {seed: 1}\n");
  folder_.write("sub/mid.yaml", "extends: ../base.yaml\nmodel:\n  num_layers: 2\n  hidden_size: 16\n");
  const LoadedConfig loaded =
      load("extends: sub/mid.yaml\nmodel:\n  arch: qwen2\n  hidden_size: 32\n", {"train.seed=5", "train.seed=6"});
  const ModelConfig& model = loaded.config.model;
  EXPECT_EQ(model.arch, &family_named("qwen2"));
  EXPECT_EQ(model.vocab_size, 9);
  EXPECT_EQ(model.num_layers, 2);
  EXPECT_EQ(model.hidden_size, 32);
  EXPECT_EQ(loaded.config.train.seed, 6);
  EXPECT_TRUE(model.add_qkv_bias) << "defaults of the winning family, not of the one it replaces";
  EXPECT_EQ(model.hidden_dropout, 0);

  EXPECT_TRUE(loaded.origins.at("model.vocab_size").ends_with("base.yaml:1"));
  EXPECT_TRUE(loaded.origins.at("model.num_layers").ends_with("sub/mid.yaml:3"));
  EXPECT_TRUE(loaded.origins.at("model.hidden_size").ends_with("run.yaml:4"));
  EXPECT_EQ(loaded.origins.at("train.seed"), "command line");
  EXPECT_EQ(loaded.origins.at("model.add_qkv_bias"), "default of model.arch=qwen2");
  EXPECT_FALSE(loaded.origins.contains("train.seq_length"));
}

TEST_F(ConfigLoad, FileWinsOverFamilyDefaults) {
  const LoadedConfig loaded = load("model: {window_size: 0, arch: mistral}");
  EXPECT_EQ(loaded.config.model.window_size, 0);
  EXPECT_EQ(load("model: {arch: mistral}").config.model.window_size, 4096);
}

TEST_F(ConfigLoad, ExtendsAListInOrder) {
  folder_.write("a.yaml", "train: {seed: 1, seq_length: 8}");
  folder_.write("b.yaml", "train: {seed: 2}");
  const TrainConfig train = load("extends: [a.yaml, b.yaml]\nmodel: {arch: gpt}").config.train;
  EXPECT_EQ(train.seed, 2);
  EXPECT_EQ(train.seq_length, 8);
}

TEST_F(ConfigLoad, RefusesBadExtends) {
  folder_.write("a.yaml", "extends: b.yaml\n");
  folder_.write("b.yaml", "extends: ./a.yaml\n");
  expect_refused("extends: a.yaml", "extends itself");
  expect_refused("extends: run.yaml", "extends itself");
  expect_refused("extends: nowhere.yaml", "nowhere.yaml");
  expect_refused("extends: {a: 1}", "'extends' takes a file or a list of files");
  expect_refused("extends: [[a.yaml]]", "'extends' takes a file or a list of files");
  for (int i = 0; i < 10; ++i) folder_.write(fmt::format("c{}.yaml", i), fmt::format("extends: c{}.yaml\n", i + 1));
  expect_refused("extends: c0.yaml", "more than 8 files extend one another");
  for (int i = 0; i < 6; ++i) {
    folder_.write(fmt::format("d{}.yaml", i), fmt::format("extends: [d{0}.yaml, d{0}.yaml, d{0}.yaml]\n", i + 1));
  }
  folder_.write("d6.yaml", "train: {seed: 1}\n");
  expect_refused("extends: d0.yaml", "more than 64 files");
}

TEST_F(ConfigLoad, ReadsEveryType) {
  const LoadedConfig loaded = load(
      "model:\n  arch: llama\n  rope_scaling: {type: yarn, factor: +4, truncate: False}\n  freeze: ['*.bias', 7]\n"
      "  layernorm_epsilon: 1.5e-6\n  qk_layernorm: true\ndataset: {data_path: a b.txt}\ncheckpoint: {save: "
      "'007'}\nlogger:\n");
  const ModelConfig& model = loaded.config.model;
  EXPECT_EQ(model.rope_scaling.type, RopeScalingKind::yarn);
  EXPECT_EQ(model.rope_scaling.factor, 4);
  EXPECT_FALSE(model.rope_scaling.truncate);
  EXPECT_EQ(model.freeze, (std::vector<std::string>{"*.bias", "7"}));
  EXPECT_EQ(model.layernorm_epsilon, 1.5e-6);
  EXPECT_TRUE(model.qk_layernorm);
  EXPECT_EQ(loaded.config.dataset.data_path, std::vector<std::string>{"a b.txt"});
  EXPECT_EQ(loaded.config.checkpoint.save, "007");
}

TEST_F(ConfigLoad, ReadsBlends) {
  const auto blend = [&](const std::string& text) {
    return load("dataset: {blend: " + text + "}").config.dataset.blend;
  };
  EXPECT_EQ(blend("[{prefix: a, weight: 0.25}, {weight: 3, prefix: '7'}]"),
            (std::vector<BlendPart>{{"a", 0.25}, {"7", 3}}));
  EXPECT_TRUE(blend("[]").empty());
  expect_refused("dataset: {blend: a}", "'a' is not a list of {prefix: P, weight: W}");
  expect_refused("dataset: {blend: {prefix: a, weight: 1}}", "a map is not a list of");
  for (const char* bad : {"[a]", "[{prefix: a}]", "[{weight: 1}]", "[{prefix: a, weight: 1, more: 2}]",
                          "[{prefix: [a], weight: 1}]", "[{prefix: , weight: 1}]"})
    expect_refused(fmt::format("dataset: {{blend: {}}}", bad), "of the list is not {prefix: P, weight: W}");
  expect_refused("dataset: {blend: [{prefix: a, weight: x}]}", "'x' is not a number");
}

TEST_F(ConfigLoad, OverridesAreYaml) {
  const RunConfig config = load("model: {arch: llama}\ncheckpoint: {save: x}",
                                {"model.rope_scaling={type: linear, factor: 2}", "model.freeze=[a, b]",
                                 "checkpoint.save=", "dataset.split=1,2,3", "run.name=a=b"})
                               .config;
  EXPECT_EQ(config.model.rope_scaling.factor, 2);
  EXPECT_EQ(config.model.freeze.size(), 2u);
  EXPECT_EQ(config.checkpoint.save, "");
  EXPECT_EQ(config.dataset.split, "1,2,3");
  EXPECT_EQ(config.run.name, "a=b");
}

TEST_F(ConfigLoad, RunIsNamedAfterItsFile) {
  const LoadedConfig loaded = load("model: {arch: llama}");
  EXPECT_EQ(loaded.config.run.name, "run");
  EXPECT_EQ(loaded.origins.at("run.name"), "name of the config file");
}

TEST_F(ConfigLoad, RefusesWrongTypes) {
  expect_bad_value("model.num_layers=three", "'three' is not a whole number");
  expect_bad_value("model.num_layers=2.5", "'2.5' is not a whole number");
  expect_bad_value("model.num_layers=1e3", "write 1000");
  expect_bad_value("model.num_layers=\"4\"", "leave out the quotes");
  expect_bad_value("model.num_layers=[4]", "a list is not a whole number");
  expect_bad_value("model.num_layers={a: 1}", "a map is not a whole number");
  expect_bad_value("model.num_layers=", "no value is given");
  expect_bad_value("model.num_layers=99999999999999999999", "does not fit in 64 bits");
  expect_bad_value("model.num_layers=0x10", "is not a whole number");
  expect_bad_value("optimizer.lr=.nan", "is not a finite number");
  expect_bad_value("optimizer.lr=nan", "is not a finite number");
  expect_bad_value("optimizer.lr=-.inf", "is not a finite number");
  expect_bad_value("optimizer.lr=infinity", "is not a finite number");
  expect_bad_value("optimizer.lr=1e999", "out of the range");
  expect_bad_value("optimizer.lr=1e-999", "out of the range");
  expect_bad_value("optimizer.lr=1,5", "is not a number");
  expect_bad_value("model.qk_layernorm=1", "is not true or false");
  expect_bad_value("model.qk_layernorm=yes", "is not true or false");
  expect_bad_value("model.arch=gtp", "'gtp' is not deepseek_v2, deepseek_v3, gpt, llama");
  expect_bad_value("model.freeze=[[a]]", "is not text");
  expect_bad_value("checkpoint.save=[a]", "a list is not text");
  expect_bad_value("model=3", "is not an override");
  expect_bad_value("model.rope_scaling=3", "model.rope_scaling is a section");
  expect_bad_value("dist.device=gpu", "is not auto, cpu or cuda");
  expect_bad_value("mixed_precision.precision=half", "is not auto, fp32, bf16 or fp16");
}

TEST_F(ConfigLoad, RefusesBadOverrides) {
  for (const char* text : {"", "=", "train.seed", "seed=1", ".seed=1", "train.=1", "train..seed=1"})
    expect_bad_value(text, "is not an override; write section.key=value");
  expect_bad_value("seq_length=128", "as in train.train_iters=100; did you mean train.seq_length=128?");
  expect_bad_value("seq_lenght=128", "did you mean train.seq_length=128?");
  expect_bad_value("factor=8", "did you mean model.rope_scaling.factor=8?");
  for (const char* text : {"model=3", "xylophone=3", "train..seed=1", "seed", "=seed"}) {
    const std::string message = refusal("model: {arch: llama}", {text});
    EXPECT_TRUE(contains(message, "as in train.train_iters=100")) << message;
    EXPECT_FALSE(contains(message, "did you mean")) << message;
  }
  expect_bad_value("train.seed=[", "is a bracket left open?");
  expect_bad_value("train.seed=[1]]", "not valid YAML");
  expect_bad_value("train.seed=\xff", "not UTF-8");
  expect_bad_value("train.seed.x=1", "train.seed: a map is not a whole number");
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "a.";
  expect_bad_value(deep + "b=1", "no key is that deep");
}

TEST_F(ConfigLoad, SuggestsTheNearestKey) {
  expect_refused("model:\n  num_layer: 3\n", "run.yaml:2: unknown key model.num_layer; did you mean model.num_layers?");
  expect_refused("train: {lr: 3}", "did you mean optimizer.lr?");
  expect_refused("modle: {arch: gpt}", "did you mean model?");
  expect_refused("dist: {bananas: 3}", "dist has device, threads, cpu_isa");
  expect_refused("model.num_layers: 3", "dots belong to the command line");
  expect_refused("a: 1", "unknown key a; a config has model, dist");
  expect_refused("[1, 2]", "a config is a map of sections");
  expect_refused("hello", "a config is a map of sections");
  expect_refused("model: 3", "model is a section");
  EXPECT_EQ(nearest_key("model.hidden_sizes"), "model.hidden_size");
  EXPECT_EQ(nearest_key("train.sede"), "train.seed");
  EXPECT_EQ(nearest_key("factor"), "model.rope_scaling.factor");
  EXPECT_EQ(nearest_key("xylophone"), "");
  EXPECT_EQ(nearest_key(std::string(100000, 'x')), "");
}

TEST_F(ConfigLoad, KnowsWhatOtherProgramsCallAKey) {
  constexpr std::pair<const char*, const char*> same[]{
      {"dist.expert_parallel_size", "dist.expert_model_parallel_size"},
      {"dist.tensor_parallel_size", "dist.tensor_model_parallel_size"},
      {"dist.pipeline_parallel_size", "dist.pipeline_model_parallel_size"},
      {"dist.num_layers_per_virtual_pipeline_stage", "dist.virtual_pipeline_model_parallel_size"},
      {"dist.decoder_first_pipeline_num_layers", "dist.num_layers_in_first_pipeline_stage"},
      {"dist.decoder_last_pipeline_num_layers", "dist.num_layers_in_last_pipeline_stage"},
      {"exp_avg_dtype", "optimizer.exp_avg_dtype"},
      {"exp_avg_sq_dtype", "optimizer.exp_avg_sq_dtype"},
      {"use_precision_aware_optimizer", "optimizer.exp_avg_dtype"},
      {"moe_layer_freq", "model.moe.layer_freq"},
      {"moe_router_topk", "model.moe.router_topk"},
      {"moe_ffn_hidden_size", "model.moe.ffn_hidden_size"},
      {"moe_shared_expert_overlap", "model.moe.shared_expert_overlap"},
      {"model.num_hidden_layers", "model.num_layers"},
      {"model.intermediate_size", "model.ffn_hidden_size"},
      {"model.num_key_value_heads", "model.num_query_groups"},
      {"model.head_dim", "model.kv_channels"},
      {"model.rms_norm_eps", "model.layernorm_epsilon"},
      {"model.rope_theta", "model.rotary_base"},
      {"model.sliding_window", "model.window_size"},
      {"model.tie_word_embeddings", "model.untie_embeddings_and_output_weights"},
      {"model.num_local_experts", "model.moe.num_experts"},
      {"model.n_routed_experts", "model.moe.num_experts"},
      {"model.moe.n_routed_experts", "model.moe.num_experts"},
      {"model.num_experts_per_tok", "model.moe.router_topk"},
      {"model.first_k_dense_replace", "model.moe.first_k_dense"},
      {"model.n_group", "model.moe.router_num_groups"},
      {"model.topk_group", "model.moe.router_group_topk"},
      {"model.moe_intermediate_size", "model.moe.ffn_hidden_size"},
      {"model.moe.intermediate_size", "model.moe.ffn_hidden_size"},
      {"model.n_shared_experts", "model.moe.shared_expert_intermediate_size"},
      {"model.routed_scaling_factor", "model.moe.router_topk_scaling_factor"},
      {"model.norm_topk_prob", "model.moe.router_pre_softmax"},
      {"model.router_aux_loss_coef", "model.moe.aux_loss_coeff"},
      {"model.aux_loss_alpha", "model.moe.aux_loss_coeff"},
      {"model.scoring_func", "model.moe.router_score_function"},
      {"model.moe_token_dispatcher_type", "model.moe.token_dispatcher_type"},
  };
  for (const auto& [theirs, ours] : same) {
    EXPECT_EQ(nearest_key(theirs), ours) << theirs;
    EXPECT_NE(find_field(ours), nullptr) << ours;
  }
  constexpr std::pair<const char*, const char*> none[]{
      {"router_dtype", "routers always compute in fp32"},
      {"grouped_gemm", "products of experts are always grouped"},
      {"permute_fusion", "permuting rows is always fused"},
      {"pad_expert_input_to_capacity", "with model.moe.expert_capacity_factor all sizes are always fixed"},
      {"input_jitter_eps", "inputs of routers are never jittered"},
      {"enable_deepep", "model.moe.token_dispatcher_type is allgather or alltoall"},
  };
  for (const auto& [name, words] : none)
    for (const char* section : {"model.moe_", "model.moe.", "moe_"}) {
      const std::string message = refusal("model: {arch: mixtral}", {fmt::format("{}{}=1", section, name)});
      EXPECT_TRUE(contains(message, words)) << message;
      EXPECT_FALSE(contains(message, "did you mean")) << message;
    }
  expect_bad_value("model.num_local_experts=8",
                   "unknown key model.num_local_experts; did you mean model.moe.num_experts?");
  expect_bad_value("num_local_experts=8", "did you mean model.moe.num_experts=8?");
  expect_bad_value("model.norm_topk_prob=true", "? norm_topk_prob=true is router_pre_softmax=false");
  for (const char* pattern : {"([0]*1+[1]*3)", "[0, 1, 1, 1]"})
    expect_bad_value(fmt::format("model.moe.layer_freq={}", pattern),
                     "is not a whole number; a pattern of layers is said by model.moe.first_k_dense and "
                     "model.moe.mlp_only_layers");
  expect_bad_value("model.moe_layer_freq=([0]*1+[1]*3)",
                   "did you mean model.moe.layer_freq? a pattern of layers is said by model.moe.first_k_dense and");
  expect_bad_value("model.moe_token_dispatcher_type=flex",
                   "did you mean model.moe.token_dispatcher_type? it is allgather or alltoall");
  expect_bad_value("model.moe.token_dispatcher_type=flex", "'flex' is not allgather or alltoall");
}

// Megatron-LM has more of them, and a switch that allows them.
TEST_F(ConfigLoad, TypesOfMoments) {
  const OptimizerConfig plain, given = load("model: {arch: llama}", {"optimizer.exp_avg_dtype=bf16"}).config.optimizer;
  EXPECT_EQ(plain.exp_avg_dtype, MomentType::fp32);
  EXPECT_EQ(plain.exp_avg_sq_dtype, MomentType::fp32);
  EXPECT_EQ(given.exp_avg_dtype, MomentType::bf16);
  EXPECT_EQ(given.exp_avg_sq_dtype, MomentType::fp32);
  for (const char* key : {"exp_avg_dtype", "exp_avg_sq_dtype"})
    for (const char* value : {"fp16", "fp8", "float16", "half", "torch.float16", "FP8", "float8_e4m3fn"})
      expect_bad_value(
          fmt::format("optimizer.{}={}", key, value),
          fmt::format("optimizer.{}: '{}' is not fp32 or bf16; fp16 and fp8 would lose small moments", key, value));
  constexpr std::pair<const char*, const char*> spellings[]{
      {"bfloat16", "; write bf16"}, {"BF16", "; write bf16"},    {"torch.bfloat16", "; write bf16"},
      {"float32", "; write fp32"},  {"FLOAT32", "; write fp32"}, {"torch.float32", "; write fp32"}};
  for (const auto& [value, words] : spellings)
    for (const char* key : {"optimizer.exp_avg_sq_dtype", "mixed_precision.precision"}) {
      expect_bad_value(fmt::format("{}={}", key, value), words);
      EXPECT_FALSE(contains(refusal("model: {arch: llama}", {fmt::format("{}={}", key, value)}), "would lose"));
    }
  const std::string unknown = refusal("model: {arch: llama}", {"optimizer.exp_avg_dtype=int4"});
  EXPECT_TRUE(unknown.ends_with("'int4' is not fp32 or bf16")) << unknown;
  expect_bad_value("use_precision_aware_optimizer=true", "did you mean optimizer.exp_avg_dtype=bf16? it and");
  expect_bad_value("use_precision_aware_optimizer=false", "did you mean optimizer.exp_avg_dtype? it and");
  expect_bad_value("bf16=true", "did you mean mixed_precision.precision=bf16?");
  expect_bad_value("fp16=true", "did you mean mixed_precision.precision=fp16?");
  expect_bad_value("tie_word_embeddings=true", "did you mean model.untie_embeddings_and_output_weights? tie_word");
  expect_bad_value("ddp.grad_reduce_in_fp32=true", "gradients are always fp32; leave it out");
  expect_bad_value("optimizer.use_precision_aware_optimizer=true",
                   "did you mean optimizer.exp_avg_dtype? it and exp_avg_sq_dtype say what moments are stored as");
  expect_bad_value("optimizer.main_params_dtype=fp16", "main weights are always fp32; leave it out");
  expect_bad_value("optimizer.main_grads_dtype=bf16", "main gradients are always fp32; leave it out");
}

// A star begins an alias in YAML.
TEST_F(ConfigLoad, PatternsNeedQuotes) {
  for (const char* value : {"[*experts*]", "*experts*", "*", "[*.experts.*]", "&experts"})
    expect_bad_value(fmt::format("model.freeze={}", value), "quote a text that begins so, as in [\"*experts*\"]");
  expect_refused("model: {freeze: [*experts*]}", "run.yaml:1: anchors and aliases (& and *) are not supported; quote");
  const LoadedConfig loaded = load("model: {arch: mixtral}", {"model.freeze=[\"*experts*\"]"});
  EXPECT_EQ(loaded.config.model.freeze, std::vector<std::string>{"*experts*"});
}

TEST_F(ConfigLoad, ReportsEverythingAtOnce) {
  const std::string message =
      refusal("model:\n  arch: llama\n  num_layer: 3\ntrain: {seed: x}\n", {"optimizer.lr=nan", "dist.thread=1"});
  EXPECT_TRUE(contains(message, "4 problems"));
  for (const char* words : {"run.yaml:3: unknown key model.num_layer", "run.yaml:4: train.seed",
                            "override 'optimizer.lr=nan'", "override 'dist.thread=1'"})
    EXPECT_TRUE(contains(message, words)) << message;
}

TEST_F(ConfigLoad, ManyProblemsStayReadable) {
  std::string text = "model:\n";
  for (int i = 0; i < 900; ++i) text += fmt::format("  nothing_like_it_{}: 1\n", i);
  const std::string message = refusal(text);
  EXPECT_TRUE(contains(message, "and 850 more")) << message.substr(0, 300);
}

}  // namespace
}  // namespace tera::test
