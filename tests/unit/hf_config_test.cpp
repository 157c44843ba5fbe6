// config.json of Hugging Face folders: keys of transformers 4 and 5, what is refused, and what comes out again.

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "tera/base/error.h"
#include "tera/config/hf_config.h"
#include "tera/config/resolve.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace tera::test {
namespace {

using Json = nlohmann::ordered_json;

Json llama() {
  return Json::parse(R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 128,
    "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16"})");
}
Json of_type(const char* type) {
  Json config = llama();
  config["model_type"] = type;
  return config;
}
Json gpt2() {
  return Json::parse(R"({"model_type": "gpt2", "n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 64,
    "vocab_size": 100, "layer_norm_epsilon": 1e-05, "activation_function": "gelu_new"})");
}

ModelConfig parse(const Json& config) { return parse_hf_config(config.dump(), "config.json"); }
std::string refusal(const Json& config) {
  return message_of<UserError>([&] { parse(config); });
}
ModelShape shape_of(const ModelConfig& model) {
  RunConfig config;
  config.model = model;
  config.train.seq_length = model.max_position_embeddings;
  return resolve(config, Purpose::inspect).model;
}

TEST(HfConfig, OldAndNewKeysOfRopeMeanTheSame) {
  Json old = llama(), fresh = llama();
  old["rope_scaling"] = {{"type", "llama3"},
                         {"factor", 8},
                         {"low_freq_factor", 1.0},
                         {"high_freq_factor", 4.0},
                         {"original_max_position_embeddings", 32}};
  fresh.erase("rope_theta");
  fresh["rope_parameters"] = {{"rope_type", "llama3"},   {"rope_theta", 500000.0},
                              {"factor", 8.0},           {"low_freq_factor", 1.0},
                              {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 32}};
  EXPECT_EQ(parse(old), parse(fresh));
  EXPECT_EQ(parse(old).rope_scaling.type, RopeScalingKind::llama3);
  EXPECT_EQ(parse(old).rotary_base, 500000.0);
}

TEST(HfConfig, RopeScalingWinsOverRopeParameters) {
  Json both = llama();
  both["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2.0}};
  both["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 7.0}};
  EXPECT_EQ(parse(both).rope_scaling.type, RopeScalingKind::linear);
  EXPECT_EQ(parse(both).rotary_base, 500000.0);
}

TEST(HfConfig, YarnLeavesOpenWhatTransformersLeavesOpen) {
  Json config = llama();
  config["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", nullptr}, {"beta_fast", 0}, {"beta_slow", nullptr}};
  config["original_max_position_embeddings"] = 32;  // at top level it wins
  const RopeScaling scaling = parse(config).rope_scaling;
  EXPECT_EQ(scaling.factor, 4.0);
  EXPECT_EQ(scaling.beta_fast, 32.0);
  EXPECT_EQ(scaling.beta_slow, 1.0);
  EXPECT_EQ(scaling.original_max_position_embeddings, 32);
  EXPECT_TRUE(scaling.truncate);
}

TEST(HfConfig, WhatIsAbsentHasTheMeaningOfItsFamily) {
  Json config = llama();
  for (const char* key : {"num_key_value_heads", "rms_norm_eps", "rope_theta", "tie_word_embeddings"})
    config.erase(key);
  const ModelConfig plain = parse(config);
  EXPECT_EQ(plain.num_query_groups, 8);
  EXPECT_EQ(plain.kv_channels, 8);
  EXPECT_EQ(plain.layernorm_epsilon, 1e-6);
  EXPECT_EQ(plain.rotary_base, 10000.0);
  EXPECT_TRUE(plain.untie_embeddings_and_output_weights);
  EXPECT_EQ(parse(of_type("qwen3")).kv_channels, 128);
  Json null_head = of_type("qwen3");
  null_head["head_dim"] = nullptr;
  EXPECT_EQ(parse(null_head).kv_channels, 8);
  Json no_groups = of_type("qwen2");
  no_groups.erase("num_key_value_heads");
  EXPECT_TRUE(contains(refusal(no_groups), "num_key_value_heads is missing"));
  const ModelConfig gpt = parse(gpt2());
  EXPECT_EQ(gpt.ffn_hidden_size, 4 * 48);
  EXPECT_FALSE(gpt.untie_embeddings_and_output_weights) << "left out of old GPT-2 files, and tied";
}

TEST(HfConfig, Gpt2TakesTheNamesOfTheOthersToo) {
  Json config = gpt2();
  const Json plain = config;
  for (const auto& [from, to] : {std::pair{"n_embd", "hidden_size"},
                                 {"n_layer", "num_hidden_layers"},
                                 {"n_head", "num_attention_heads"},
                                 {"n_positions", "max_position_embeddings"}}) {
    config[to] = config[from];
    config.erase(from);
  }
  EXPECT_EQ(parse(config), parse(plain));
}

TEST(HfConfig, Windows) {
  const auto windows = [](Json config, const Json& changes) {
    config.update(changes);
    return shape_of(parse(config)).window;
  };
  using W = std::vector<std::int64_t>;
  EXPECT_EQ(windows(of_type("mistral"), Json::object()), W(4, 4096)) << "absent in a mistral";
  EXPECT_EQ(windows(of_type("mistral"), {{"sliding_window", nullptr}}), W(4, 0));
  EXPECT_EQ(windows(of_type("mistral"), {{"sliding_window", 9}}), W(4, 9));
  EXPECT_EQ(windows(of_type("qwen2"), {{"sliding_window", 9}, {"max_window_layers", 1}}), W(4, 0)) << "not in use";
  const Json used{{"use_sliding_window", true}, {"sliding_window", 9}, {"max_window_layers", 3}};
  EXPECT_EQ(windows(of_type("qwen2"), used), (W{0, 0, 0, 9}));
  Json listed = used;
  listed["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention", "full_attention"};
  EXPECT_EQ(windows(of_type("qwen3"), listed), (W{9, 0, 9, 0})) << "the list decides";
  EXPECT_EQ(windows(llama(), {{"sliding_window", 9}}), W(4, 0)) << "no such key in a llama";
}

TEST(HfConfig, RefusesByNameWhatItCannotCompute) {
  const auto with = [](Json config, const char* key, const Json& value) {
    config[key] = value;
    return refusal(config);
  };
  EXPECT_TRUE(contains(with(llama(), "model_type", "bloom"), "model_type"));
  EXPECT_TRUE(contains(with(llama(), "hidden_act", "relu"), "hidden_act is \"relu\""));
  EXPECT_TRUE(contains(with(llama(), "rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2.0}}), "rope_type"));
  EXPECT_TRUE(contains(with(llama(), "rope_scaling", {{"type", "longrope"}}), "rope_scaling.type"));
  EXPECT_TRUE(contains(with(llama(), "partial_rotary_factor", 0.5), "partial_rotary_factor"));
  EXPECT_TRUE(contains(with(llama(), "quantization_config", {{"quant_method", "gptq"}}), "quantization_config"));
  EXPECT_TRUE(contains(with(of_type("qwen2"), "layer_types",
                            {"chunked_attention", "full_attention", "full_attention", "full_attention"}),
                       "layer_types"));
  EXPECT_TRUE(contains(with(of_type("qwen2"), "layer_types", {"full_attention"}), "1 entries for 4 layers"));
  EXPECT_TRUE(contains(with(gpt2(), "scale_attn_weights", false), "scale_attn_weights"));
  EXPECT_TRUE(contains(with(gpt2(), "scale_attn_by_inverse_layer_idx", true), "scale_attn_by_inverse_layer_idx"));
  EXPECT_TRUE(contains(with(gpt2(), "add_cross_attention", true), "add_cross_attention"));
  EXPECT_TRUE(contains(with(gpt2(), "activation_function", "tanh"), "activation_function"));
}

TEST(HfConfig, TellsWhatIsWrongWithAValue) {
  const auto with = [](const char* key, const Json& value) {
    Json config = llama();
    config[key] = value;
    return refusal(config);
  };
  EXPECT_TRUE(contains(with("hidden_size", "64"), "config.json: hidden_size is \"64\", and should be a whole number"));
  EXPECT_TRUE(contains(with("hidden_size", 64.5), "whole number"));
  EXPECT_TRUE(contains(with("hidden_size", nullptr), "hidden_size is missing"));
  EXPECT_TRUE(contains(with("rms_norm_eps", true), "rms_norm_eps is true"));
  EXPECT_TRUE(contains(with("num_hidden_layers", 1e18), "num_hidden_layers"));
  EXPECT_TRUE(contains(with("num_attention_heads", 7), "no multiple of num_attention_heads 7"));
  EXPECT_TRUE(contains(with("num_attention_heads", 0), "num_attention_heads"));
  EXPECT_TRUE(contains(with("rope_scaling", 3), "rope_scaling is 3"));
  EXPECT_TRUE(contains(message_of<UserError>([] { parse_hf_config("[1]", "x.json"); }), "x.json: must be one JSON"));
  EXPECT_TRUE(contains(message_of<UserError>([] { parse_hf_config("{", "x.json"); }), "x.json: not JSON"));
  const std::string deep(100'000, '[');
  EXPECT_TRUE(contains(message_of<UserError>([&] { parse_hf_config(deep, "x.json"); }), "nested"));
}

// --- written again

TEST(HfConfig, KeepsTheSourcesKeysAndTheirOrder) {
  Json source = llama();
  source["auto_map"] = {{"AutoModel", "x.Y"}};
  source["_name_or_path"] = "somewhere";
  const std::string text = source.dump();
  const Json out = Json::parse(format_hf_config(shape_of(parse(source)), {.source = text, .dtype = "float32"}));
  Json wanted = source;
  wanted["torch_dtype"] = "float32";
  EXPECT_EQ(out.dump(), wanted.dump());
}

// transformers 5 refuses a whole number where it declared a float.
TEST(HfConfig, FloatsWrittenAsIntegersGetAPoint) {
  Json source = llama();
  source["attention_dropout"] = 0;
  source["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 4}};
  const std::string text = source.dump();
  const std::string out = format_hf_config(shape_of(parse(source)), {.source = text, .dtype = ""});
  EXPECT_TRUE(contains(out, "\"factor\": 4.0")) << out;
  EXPECT_TRUE(contains(out, "\"attention_dropout\": 0.0")) << out;
  EXPECT_TRUE(contains(out, "\"hidden_size\": 64,")) << out;
}

TEST(HfConfig, AModelOfOurOwnComesBackAsItIs) {
  std::vector<Json> configs{llama(), of_type("mistral"), of_type("qwen2"), of_type("qwen3"), gpt2()};
  configs.push_back(of_type("qwen2"));
  configs.back().update({{"use_sliding_window", true}, {"sliding_window", 9}, {"max_window_layers", 3}});
  configs.push_back(of_type("qwen3"));
  configs.back().update(
      {{"use_sliding_window", true}, {"sliding_window", 9}, {"attention_bias", true}, {"head_dim", 10}});
  configs.back()["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention", "full_attention"};
  configs.push_back(llama());
  configs.back().update({{"attention_bias", true}, {"mlp_bias", true}, {"tie_word_embeddings", true}});
  configs.back()["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}, {"mscale", 0.7}, {"truncate", false}};
  for (const Json& config : configs) {
    const ModelShape shape = shape_of(parse(config));
    const std::string written = format_hf_config(shape, {.source = "", .dtype = "bfloat16"});
    EXPECT_EQ(shape_of(parse_hf_config(written, "written")), shape) << written;
    EXPECT_TRUE(contains(written, "rope_parameters") == false) << "version 4 keys, which everyone reads";
  }
}

TEST(HfConfig, RefusesToWriteWhatNoConfigCanSay) {
  const auto refused = [](const Json& config, const std::function<void(ModelShape&)>& change) {
    ModelShape shape = shape_of(parse(config));
    change(shape);
    return message_of<UserError>([&] { format_hf_config(shape, {.source = "", .dtype = ""}); });
  };
  EXPECT_TRUE(contains(refused(llama(), [](ModelShape& m) { m.norm = NormKind::layer_norm; }), "model.normalization"));
  EXPECT_TRUE(contains(refused(llama(), [](ModelShape& m) { m.qk_norm = true; }), "model.qk_layernorm"));
  EXPECT_TRUE(contains(refused(llama(), [](ModelShape& m) { m.window.assign(4, 7); }), "model.window_size"));
  EXPECT_TRUE(contains(refused(llama(), [](ModelShape& m) { m.qkv_bias = true; }), "model.add_attention_output_bias"));
  EXPECT_TRUE(contains(refused(llama(), [](ModelShape& m) { m.activation = Activation::squared_relu; }), "activation"));
  EXPECT_TRUE(contains(refused(gpt2(), [](ModelShape& m) { m.kv_heads = 2; }), "model.num_query_groups"));
}

// --- model.hf in a run's config

TEST(HfConfig, ModelHfDecidesTheShape) {
  const TempFolder folder;
  folder.write("hf/config.json", llama().dump());
  const std::string hf = "model.hf=" + (folder / "hf").string();
  const auto file = folder.write("run.yaml", "train: {seq_length: 16}\nmodel: {hidden_dropout: 0.1}\n").string();
  const LoadedConfig loaded = load_config(file, std::vector{hf});
  EXPECT_EQ(loaded.config.model.hidden_size, 64);
  EXPECT_EQ(loaded.config.model.arch, Arch::llama);
  EXPECT_EQ(loaded.config.model.hidden_dropout, 0.1) << "a matter of training";
  EXPECT_TRUE(contains(loaded.origins.at("model.hidden_size"), "config.json"));
  EXPECT_NO_THROW(load_config(file, std::vector{hf, std::string("model.hidden_size=64")})) << "the same is no mistake";
  const std::string wrong = message_of<UserError>([&] {
    load_config(file,
                std::vector{hf, std::string("model.hidden_size=128"), std::string("model.rope_scaling.factor=2")});
  });
  EXPECT_TRUE(contains(wrong, "model.hidden_size=128 (command line)")) << wrong;
  EXPECT_TRUE(contains(wrong, "has 64")) << wrong;
  EXPECT_TRUE(contains(wrong, "model.rope_scaling.factor=2")) << wrong;
  EXPECT_TRUE(
      contains(message_of<UserError>([&] { load_config(file, std::vector{"model.hf=" + (folder / "none").string()}); }),
               "no config.json"));
}

}  // namespace
}  // namespace tera::test
