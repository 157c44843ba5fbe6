// config.json of Hugging Face folders: keys of transformers 4 and 5, what is refused, and what comes out again.

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "tera/base/error.h"
#include "tera/hf/config/hf_config.h"
#include "tera/hf/config/hf_tokenizer.h"
#include "tera/setup/resolve.h"
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

Json mixtral() {
  Json config = of_type("mixtral");
  config.update({{"num_local_experts", 4}, {"num_experts_per_tok", 2}, {"router_aux_loss_coef", 0.02}});
  return config;
}
Json qwen3_moe() {
  Json config = of_type("qwen3_moe");
  config.update({{"num_experts", 16},
                 {"num_experts_per_tok", 3},
                 {"moe_intermediate_size", 24},
                 {"norm_topk_prob", true},
                 {"head_dim", 10},
                 {"router_aux_loss_coef", 0.5}});
  return config;
}

Json deepseek_v3() {
  Json config = of_type("deepseek_v3");
  config.update({{"num_key_value_heads", 8},
                 {"q_lora_rank", 20},
                 {"kv_lora_rank", 12},
                 {"qk_nope_head_dim", 10},
                 {"qk_rope_head_dim", 4},
                 {"v_head_dim", 6},
                 {"n_routed_experts", 16},
                 {"num_experts_per_tok", 3},
                 {"moe_intermediate_size", 24},
                 {"n_shared_experts", 2},
                 {"first_k_dense_replace", 1},
                 {"n_group", 4},
                 {"topk_group", 2},
                 {"norm_topk_prob", true},
                 {"routed_scaling_factor", 1.5},
                 {"scoring_func", "sigmoid"},
                 {"topk_method", "noaux_tc"},
                 {"moe_layer_freq", 1},
                 {"num_nextn_predict_layers", 1}});
  config["rope_scaling"] = {{"type", "yarn"},       {"factor", 40},   {"original_max_position_embeddings", 32},
                            {"beta_fast", 32},      {"beta_slow", 1}, {"mscale", 1.0},
                            {"mscale_all_dim", 1.0}};
  return config;
}
Json deepseek_v2() {
  Json config = deepseek_v3();
  config.update({{"model_type", "deepseek_v2"},
                 {"q_lora_rank", nullptr},
                 {"norm_topk_prob", false},
                 {"scoring_func", "softmax"},
                 {"topk_method", "greedy"},
                 {"n_group", 1},
                 {"topk_group", 1}});
  return config;
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

// transformers writes `rope_scaling or rope_parameters`.
TEST(HfConfig, AnEmptyRopeScalingIsNone) {
  Json both = llama();
  both["rope_scaling"] = Json::object();
  both["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 3.0}, {"rope_theta", 7.0}};
  EXPECT_EQ(parse(both).rope_scaling.type, RopeScalingKind::linear);
  EXPECT_EQ(parse(both).rotary_base, 7.0);
  both.erase("rope_parameters");
  EXPECT_EQ(parse(both).rope_scaling.type, RopeScalingKind::none);
  EXPECT_EQ(parse(both).rotary_base, 500000.0);
}

TEST(HfConfig, NullAndZeroUnderYarnAreNotAlwaysAbsent) {
  Json config = llama();
  config["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}, {"truncate", nullptr}};
  EXPECT_FALSE(parse(config).rope_scaling.truncate) << "there, and not true";
  config["rope_scaling"]["attention_factor"] = nullptr;
  EXPECT_EQ(parse(config).rope_scaling.attention_factor, 0) << "left to YaRN";
  config["rope_scaling"]["attention_factor"] = 0.0;
  EXPECT_TRUE(contains(refusal(config), "rope_scaling.attention_factor is 0.0"));
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
  no_groups["num_key_value_heads"] = nullptr;
  EXPECT_EQ(parse(no_groups).num_query_groups, 8) << "null: as many as heads";
  no_groups.erase("num_key_value_heads");
  EXPECT_TRUE(contains(refusal(no_groups), "num_key_value_heads 32 (its default) does not divide"));
  no_groups["num_attention_heads"] = 32;
  EXPECT_EQ(parse(no_groups).num_query_groups, 32);
  no_groups["model_type"] = "mistral";
  EXPECT_EQ(parse(no_groups).num_query_groups, 8);
  const ModelConfig bare = parse({{"model_type", "llama"}});
  EXPECT_EQ(bare.hidden_size, 4096);
  EXPECT_EQ(bare.ffn_hidden_size, 11008);
  EXPECT_EQ(bare.vocab_size, 32000);
  EXPECT_EQ(bare.max_position_embeddings, 2048);
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
  Json mistral{{"sliding_window", 9}};
  mistral["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention", "full_attention"};
  EXPECT_EQ(windows(of_type("mistral"), mistral), (W{9, 0, 9, 0})) << "as AutoModel of transformers 5 has it";
  EXPECT_EQ(windows(of_type("qwen2"), {{"sliding_window", 0}}), W(4, 0)) << "not in use";
}

TEST(HfConfig, ExpertsOfAMixtral) {
  const ModelConfig model = parse(mixtral());
  EXPECT_EQ(model.moe,
            (MoeConfig{.num_experts = 4, .ffn_hidden_size = 96, .router_topk = 2, .aux_loss_coeff = {0.02}}));
  EXPECT_FALSE(model.qk_layernorm);
  EXPECT_EQ(model.window_size, 0) << "absent, and none, unlike in a mistral";
  Json windowed = mixtral();
  windowed["sliding_window"] = 9;
  EXPECT_EQ(shape_of(parse(windowed)).window, std::vector<std::int64_t>(4, 9));
  Json other_name = mixtral();
  other_name.erase("num_local_experts");
  other_name["num_experts"] = 4;
  EXPECT_EQ(parse(other_name), model);
  const ModelConfig bare = parse({{"model_type", "mixtral"}});
  EXPECT_EQ(bare.moe.num_experts, 8);
  EXPECT_EQ(bare.moe.ffn_hidden_size, 14336);
  EXPECT_EQ(bare.moe.aux_loss_coeff, std::vector<double>{0.001});
  EXPECT_EQ(bare.rotary_base, 1e6);
  EXPECT_EQ(bare.layernorm_epsilon, 1e-5);
  EXPECT_EQ(bare.num_query_groups, 8);
}

TEST(HfConfig, ExpertsOfAQwen3Moe) {
  Json config = qwen3_moe();
  const ModelConfig model = parse(config);
  EXPECT_EQ(model.moe,
            (MoeConfig{.num_experts = 16, .ffn_hidden_size = 24, .router_topk = 3, .aux_loss_coeff = {0.5}}));
  EXPECT_TRUE(model.qk_layernorm);
  EXPECT_EQ(model.kv_channels, 10);
  EXPECT_EQ(model.ffn_hidden_size, 96) << "of layers without experts";
  config["num_local_experts"] = 16;
  EXPECT_EQ(parse(config), model) << "the same twice";
  config.erase("num_experts");
  EXPECT_EQ(parse(config), model) << "as transformers 5 writes it";
  config.erase("head_dim");
  EXPECT_EQ(parse(config).kv_channels, 8) << "unlike in a qwen3";
  config.erase("norm_topk_prob");
  EXPECT_TRUE(parse(config).moe.router_pre_softmax) << "absent means false";
  config.update({{"use_sliding_window", true}, {"sliding_window", 9}, {"max_window_layers", 3}});
  EXPECT_EQ(shape_of(parse(config)).window, std::vector<std::int64_t>(4, 9)) << "in every layer";
  const ModelConfig bare = parse({{"model_type", "qwen3_moe"}});
  EXPECT_EQ(bare.moe.num_experts, 128);
  EXPECT_EQ(bare.moe.ffn_hidden_size, 768);
  EXPECT_EQ(bare.moe.router_topk, 8);
  EXPECT_EQ(bare.num_query_groups, 4);
  EXPECT_EQ(bare.kv_channels, 64);
}

TEST(HfConfig, LayersOfAQwen3MoeThatHaveExperts) {
  const auto layers = [](const Json& changes) {
    Json config = qwen3_moe();
    config.update(changes);
    return shape_of(parse(config)).moe->layers;
  };
  using Layers = std::vector<bool>;
  EXPECT_EQ(layers({{"decoder_sparse_step", 2}}), (Layers{0, 1, 0, 1}));
  EXPECT_EQ(layers({{"mlp_only_layers", Json::array({0, 2})}}), (Layers{0, 1, 0, 1}));
  EXPECT_EQ(layers({{"mlp_only_layers", nullptr}}), Layers(4, true));
  EXPECT_EQ(layers({{"mlp_only_layers", Json::array({1, 70, -1})}}), (Layers{1, 0, 1, 1})) << "others name no layer";
}

TEST(HfConfig, RefusesExpertsThatCannotBe) {
  const auto with = [](Json config, const char* key, const Json& value) {
    config[key] = value;
    return refusal(config);
  };
  EXPECT_TRUE(contains(with(mixtral(), "num_local_experts", 0), "num_local_experts is 0"));
  EXPECT_TRUE(contains(with(mixtral(), "num_local_experts", 1 << 20), "num_experts is 1048576: must be"));
  EXPECT_TRUE(contains(with(mixtral(), "num_experts", 5), "num_local_experts is 4 and num_experts is 5"));
  EXPECT_TRUE(contains(with(mixtral(), "num_experts_per_tok", 5), "num_experts_per_tok is 5, and there are 4 experts"));
  EXPECT_TRUE(contains(with(mixtral(), "router_jitter_noise", 0.1), "router_jitter_noise is 0.1"));
  EXPECT_TRUE(contains(with(mixtral(), "router_aux_loss_coef", -1.0), "router_aux_loss_coef is [-1]: must be"));
  EXPECT_TRUE(contains(with(qwen3_moe(), "moe_intermediate_size", "a"), "moe_intermediate_size is \"a\""));
  EXPECT_TRUE(contains(with(qwen3_moe(), "mlp_only_layers", "a"), "mlp_only_layers is \"a\""));
  EXPECT_TRUE(contains(with(qwen3_moe(), "mlp_only_layers", {1.5}), "a list of whole numbers"));
  EXPECT_TRUE(contains(with(qwen3_moe(), "mlp_only_layers", {0, 1, 2, 3}), "no layer has experts"));
  EXPECT_TRUE(contains(with(qwen3_moe(), "decoder_sparse_step", 0), "decoder_sparse_step is 0"));
}

TEST(HfConfig, LatentsAndExpertsOfADeepseek) {
  const ModelConfig model = parse(deepseek_v3());
  EXPECT_TRUE(model.multi_latent_attention && model.rotary_interleaved);
  EXPECT_EQ(model.mla, (MlaConfig{.q_lora_rank = 20,
                                  .kv_lora_rank = 12,
                                  .qk_head_dim = 10,
                                  .qk_pos_emb_head_dim = 4,
                                  .v_head_dim = 6,
                                  .rotary_scaling_factor = 40,
                                  .original_max_position_embeddings = 32,
                                  .mscale = 1,
                                  .mscale_all_dim = 1}));
  EXPECT_EQ(model.rope_scaling, RopeScaling{}) << "it is said once";
  EXPECT_EQ(model.kv_channels, 0);
  const ModelShape shape = shape_of(model);
  EXPECT_EQ(shape.head_dim, 14);
  EXPECT_EQ(shape.moe->layers, (std::vector<bool>{0, 1, 1, 1}));
  EXPECT_EQ(shape.moe->shared_ffn, 48);
  EXPECT_EQ(shape.moe->router, (RouterShape{.score = ScoreFunction::sigmoid,
                                            .topk = 3,
                                            .scale = 1.5f,
                                            .groups = 4,
                                            .group_topk = 2,
                                            .group_best = 2,
                                            .expert_bias = true}));
  const ModelShape v2 = shape_of(parse(deepseek_v2()));
  EXPECT_EQ(v2.mla->q_lora, 0);
  EXPECT_EQ(v2.moe->router, (RouterShape{.topk = 3, .renormalize = false, .scale = 1.5f}));
  Json grouped = deepseek_v2();
  grouped.update({{"topk_method", "group_limited_greedy"}, {"n_group", 4}, {"topk_group", 2}});
  EXPECT_EQ(shape_of(parse(grouped)).moe->router.group_best, 1);
  Json halves = deepseek_v3();
  halves["rope_interleave"] = false;
  EXPECT_FALSE(parse(halves).rotary_interleaved);
  const ModelConfig bare = parse({{"model_type", "deepseek_v3"}});
  EXPECT_EQ(bare.mla, (MlaConfig{.q_lora_rank = 1536}));
  EXPECT_EQ(bare.moe.num_experts, 256);
  EXPECT_EQ(shape_of(bare).moe->layers[2], false);
  EXPECT_EQ(shape_of(bare).moe->layers[3], true);
}

TEST(HfConfig, RefusesADeepseekThatCannotBe) {
  const auto with = [](Json config, const char* key, const Json& value) {
    config[key] = value;
    return refusal(config);
  };
  EXPECT_TRUE(contains(with(deepseek_v3(), "num_key_value_heads", 4), "num_key_value_heads is 4"));
  EXPECT_TRUE(contains(with(deepseek_v3(), "qk_rope_head_dim", 5), "qk_rope_head_dim is 5, and should be even"));
  EXPECT_TRUE(contains(with(deepseek_v3(), "v_head_dim", 15), "v_head_dim is 15"));
  EXPECT_TRUE(contains(with(deepseek_v3(), "kv_lora_rank", 0), "kv_lora_rank is 0"));
  EXPECT_TRUE(contains(with(deepseek_v3(), "scoring_func", "softmax"), "scoring_func is \"softmax\""));
  EXPECT_TRUE(contains(with(deepseek_v3(), "topk_method", "greedy"), "topk_method is \"greedy\""));
  EXPECT_TRUE(contains(with(deepseek_v3(), "norm_topk_prob", false), "norm_topk_prob is false"));
  EXPECT_TRUE(contains(with(deepseek_v3(), "n_group", 3), "n_group is 3"));
  EXPECT_TRUE(contains(with(deepseek_v3(), "topk_group", 5), "topk_group is 5"));
  EXPECT_TRUE(contains(with(deepseek_v3(), "first_k_dense_replace", 4), "first_k_dense_replace is 4"));
  EXPECT_TRUE(contains(with(deepseek_v3(), "moe_layer_freq", 2), "moe_layer_freq is 2"));
  EXPECT_TRUE(contains(with(deepseek_v3(), "n_shared_experts", -1), "n_shared_experts is -1"));
  EXPECT_TRUE(contains(with(deepseek_v3(), "num_experts_per_tok", 17), "num_experts_per_tok is 17"));
  EXPECT_TRUE(contains(with(deepseek_v3(), "rope_scaling", {{"type", "linear"}, {"factor", 2.0}}), "type yarn is"));
  EXPECT_TRUE(contains(with(deepseek_v2(), "norm_topk_prob", true), "norm_topk_prob is true"));
  EXPECT_TRUE(contains(with(deepseek_v2(), "topk_method", "noaux_tc"), "topk_method is \"noaux_tc\""));
  EXPECT_TRUE(contains(with(deepseek_v2(), "mlp_bias", true), "mlp_bias is true"));
}

// The number of MTP layers is that of the files, not that of config.json.
TEST(HfConfig, ADeepseekIsWrittenWithAsManyMtpLayersAsItHas) {
  const std::string source = deepseek_v3().dump();
  const ModelShape shape = shape_of(parse(deepseek_v3()));
  for (const std::string_view from : {std::string_view(source), std::string_view()}) {
    const Json out = Json::parse(format_hf_config(shape, {.source = from, .dtype = ""}));
    EXPECT_EQ(out["num_nextn_predict_layers"], 0);
    ModelShape further = shape;
    further.mtp_layers = 2;
    EXPECT_EQ(Json::parse(format_hf_config(further, {.source = from, .dtype = ""}))["num_nextn_predict_layers"], 2);
    EXPECT_EQ(out["n_shared_experts"], 2);
    EXPECT_EQ(out["first_k_dense_replace"], 1);
    EXPECT_TRUE(out["rope_scaling"]["factor"].is_number_float());
    EXPECT_EQ(out["rope_scaling"]["mscale_all_dim"], 1.0);
  }
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
  EXPECT_TRUE(contains(with(llama(), "layer_types", {"linear_attention", "full_attention"}), "layer_types"));
  EXPECT_TRUE(contains(with(llama(), "layer_types", Json::array({"full_attention"})), "1 entries for "));
  EXPECT_TRUE(contains(with(llama(), "is_causal", false), "is_causal is false"));
  EXPECT_TRUE(contains(with(gpt2(), "is_causal", false), "is_causal is false"));
  EXPECT_TRUE(contains(with(llama(), "per_layer_config", {{"0", {{"hidden_size", 8}}}}), "per_layer_config"));
  EXPECT_TRUE(contains(with(llama(), "rope_parameters", {{"full_attention", {{"rope_theta", 5.0}}}}),
                       "rope_parameters.full_attention"));
  EXPECT_TRUE(contains(with(gpt2(), "scale_attn_weights", false), "scale_attn_weights"));
  EXPECT_TRUE(contains(with(gpt2(), "scale_attn_by_inverse_layer_idx", true), "scale_attn_by_inverse_layer_idx"));
  EXPECT_TRUE(contains(with(gpt2(), "add_cross_attention", true), "add_cross_attention"));
  EXPECT_TRUE(contains(with(gpt2(), "activation_function", "tanh"), "activation_function"));
}

TEST(HfConfig, NamesWhatIsWrongWithAValue) {
  const auto with = [](const char* key, const Json& value) {
    Json config = llama();
    config[key] = value;
    return refusal(config);
  };
  EXPECT_TRUE(contains(with("hidden_size", "64"), "config.json: hidden_size is \"64\", and should be a whole number"));
  EXPECT_TRUE(contains(with("hidden_size", 64.5), "whole number"));
  EXPECT_TRUE(contains(with("hidden_size", nullptr), "hidden_size is null"));
  EXPECT_TRUE(contains(with("rms_norm_eps", true), "rms_norm_eps is true"));
  EXPECT_TRUE(contains(with("num_hidden_layers", 1e18), "num_hidden_layers"));
  EXPECT_TRUE(contains(with("num_attention_heads", 6), "no multiple of num_attention_heads 6"));
  EXPECT_TRUE(contains(with("num_attention_heads", 7), "num_key_value_heads 2 does not divide num_attention_heads"));
  EXPECT_TRUE(contains(with("num_key_value_heads", 0), "num_key_value_heads is 0"));
  EXPECT_TRUE(contains(with("num_key_value_heads", -2), "num_key_value_heads is -2"));
  EXPECT_TRUE(contains(with("head_dim", 0), "config.json: head_dim is 0"));
  EXPECT_TRUE(contains(with("head_dim", 7), "head_dim is 7, and should be even"));
  EXPECT_TRUE(contains(with("vocab_size", 0), "config.json: vocab_size is 0"));
  EXPECT_TRUE(contains(with("intermediate_size", 1 << 30), "config.json: intermediate_size is 1073741824: must be"));
  EXPECT_TRUE(contains(with("max_position_embeddings", -1), "config.json: max_position_embeddings is -1"));
  EXPECT_TRUE(contains(with("rms_norm_eps", -1.0), "config.json: rms_norm_eps is -1: must be"));
  EXPECT_TRUE(contains(with("rope_theta", 0.0), "config.json: rope_theta is 0: must be"));
  EXPECT_TRUE(contains(with("attention_dropout", 2.0), "config.json: attention_dropout is 2: must be"));
  EXPECT_TRUE(contains(with("rope_scaling", {{"rope_type", "linear"}, {"factor", 0.5}}),
                       "config.json: rope_scaling.factor is 0.5: must be"));
  Json gpt = gpt2();
  gpt["n_inner"] = 0;
  EXPECT_TRUE(contains(refusal(gpt), "config.json: n_inner is 0"));
  gpt["n_inner"] = nullptr;
  EXPECT_EQ(parse(gpt).ffn_hidden_size, 4 * 48);
  gpt["layer_norm_epsilon"] = 7;
  EXPECT_TRUE(contains(refusal(gpt), "config.json: layer_norm_epsilon is 7: must be"));
  Json window = of_type("mistral");
  window["sliding_window"] = 0;
  EXPECT_TRUE(contains(refusal(window), "sliding_window is 0"));
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

// transformers 4 knows neither rope_parameters nor dtype.
TEST(HfConfig, KeysOfTransformers4AreAddedToAFileThatHasThoseOf5) {
  Json source = llama();
  for (const char* key : {"rope_theta", "torch_dtype"}) source.erase(key);
  source["dtype"] = "bfloat16";
  source["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 700.0}};
  const std::string text = source.dump();
  const ModelShape shape = shape_of(parse(source));
  Json older = Json::parse(format_hf_config(shape, {.source = text, .dtype = "float32"}));
  EXPECT_EQ(older["dtype"], "float32");
  EXPECT_EQ(older["torch_dtype"], "float32");
  EXPECT_EQ(older["rope_theta"], 700.0);
  EXPECT_EQ(older["rope_scaling"], Json({{"rope_type", "linear"}, {"factor", 2.0}}));
  EXPECT_EQ(older["rope_parameters"], source["rope_parameters"]);
  older.erase("rope_parameters");
  EXPECT_EQ(shape_of(parse(older)), shape);
}

TEST(HfConfig, IdsOfAnotherTokenizerTakeThePlaceOfTheSources) {
  Json source = llama();
  source.update({{"bos_token_id", 1}, {"eos_token_id", {2, 3}}, {"image_token_id", 9}});
  const std::string text = source.dump();
  const ModelShape shape = shape_of(parse(source));
  Json out = Json::parse(format_hf_config(shape, {.source = text, .dtype = "", .tokens = HfTokenIds{.eos = 7}}));
  EXPECT_EQ(out["eos_token_id"], 7);
  EXPECT_TRUE(out["bos_token_id"].is_null());
  EXPECT_FALSE(out.contains("image_token_id"));
  out = Json::parse(format_hf_config(shape, {.source = text, .dtype = ""}));
  EXPECT_EQ(out["eos_token_id"], Json({2, 3}));
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
  configs.insert(configs.end(), {mixtral(), mixtral(), qwen3_moe(), qwen3_moe()});
  configs[6]["sliding_window"] = 9;
  configs[8].update({{"norm_topk_prob", false}, {"use_sliding_window", true}, {"sliding_window", 9}});
  configs[8].update({{"decoder_sparse_step", 2}, {"mlp_only_layers", Json::array({1})}, {"attention_bias", true}});
  configs.push_back(of_type("qwen2"));
  configs.back().update({{"use_sliding_window", true}, {"sliding_window", 9}, {"max_window_layers", 3}});
  configs.push_back(of_type("qwen3"));
  configs.back().update(
      {{"use_sliding_window", true}, {"sliding_window", 9}, {"attention_bias", true}, {"head_dim", 10}});
  configs.back()["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention", "full_attention"};
  configs.push_back(llama());
  configs.back().update({{"attention_bias", true}, {"mlp_bias", true}, {"tie_word_embeddings", true}});
  configs.back()["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}, {"mscale", 0.7}, {"truncate", false}};
  configs.insert(configs.end(), {deepseek_v3(), deepseek_v3(), deepseek_v2(), deepseek_v2()});
  configs[configs.size() - 3].update({{"q_lora_rank", nullptr}, {"attention_bias", true}, {"rope_interleave", false}});
  configs[configs.size() - 3].erase("rope_scaling");
  configs.back().update({{"topk_method", "group_limited_greedy"}, {"n_group", 4}, {"topk_group", 2}});
  for (const Json& config : configs) {
    const ModelShape shape = shape_of(parse(config));
    const std::string written = format_hf_config(shape, {.source = "", .dtype = "bfloat16"});
    EXPECT_EQ(shape_of(parse_hf_config(written, "written")), shape) << written;
    const Json said = Json::parse(written);
    EXPECT_EQ(said["torch_dtype"], "bfloat16");
    EXPECT_EQ(said["dtype"], "bfloat16");
    if (config["model_type"] == "gpt2") continue;
    EXPECT_EQ(said["rope_theta"], said["rope_parameters"]["rope_theta"]) << "for transformers 4 and for 5";
    Json newer = said;
    for (const char* key : {"rope_theta", "rope_scaling"}) newer.erase(key);
    EXPECT_EQ(shape_of(parse(newer)), shape) << newer;
  }
}

// transformers 4 reads num_experts of a qwen3_moe, and num_local_experts of a mixtral.
TEST(HfConfig, ExpertsAreCountedUnderTheNameOfTransformers4) {
  for (Json source : {mixtral(), qwen3_moe()}) {
    const bool qwen = source["model_type"] == "qwen3_moe";
    const char* older = qwen ? "num_experts" : "num_local_experts";
    const char* newer = qwen ? "num_local_experts" : "num_experts";
    const ModelShape shape = shape_of(parse(source));
    EXPECT_EQ(Json::parse(format_hf_config(shape, {.source = "", .dtype = ""}))[older], source[older]);
    source[newer] = source[older];
    source.erase(older);
    source["router_aux_loss_coef"] = 1;
    const std::string text = source.dump();
    const Json out = Json::parse(format_hf_config(shape, {.source = text, .dtype = ""}));
    EXPECT_EQ(out[older], source[newer]);
    EXPECT_EQ(out[newer], source[newer]);
    EXPECT_TRUE(out["router_aux_loss_coef"].is_number_float());
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
  EXPECT_TRUE(contains(refused(of_type("mistral"), [](ModelShape& m) { m.window = {9, 0, 9, 0}; }), "layer_types"));
  EXPECT_TRUE(
      contains(refused(mixtral(), [](ModelShape& m) { m.moe->layers[0] = false; }), "model.moe.mlp_only_layers"));
  EXPECT_TRUE(contains(refused(mixtral(), [](ModelShape& m) { m.moe->router.renormalize = false; }),
                       "model.moe.router_pre_softmax"));
  EXPECT_TRUE(contains(refused(qwen3_moe(), [](ModelShape& m) { m.moe->router.score = ScoreFunction::sigmoid; }),
                       "model.moe.router_score_function"));
  EXPECT_TRUE(contains(refused(qwen3_moe(), [](ModelShape& m) { m.moe->shared_ffn = 8; }),
                       "model.moe.shared_expert_intermediate_size"));
  EXPECT_TRUE(contains(refused(qwen3_moe(),
                               [](ModelShape& m) {
                                 m.window = {0, 9, 9, 9};
                               }),
                       "model.max_window_layers: a qwen3_moe"));
  EXPECT_TRUE(contains(refused(deepseek_v3(), [](ModelShape& m) { m.moe->shared_ffn = 30; }),
                       "model.moe.shared_expert_intermediate_size"));
  EXPECT_TRUE(
      contains(refused(deepseek_v3(), [](ModelShape& m) { m.moe->layers[3] = false; }), "model.moe.mlp_only_layers"));
  EXPECT_TRUE(
      contains(refused(deepseek_v2(), [](ModelShape& m) { m.rope.interleaved = false; }), "model.rotary_interleaved"));
  EXPECT_TRUE(contains(refused(deepseek_v3(),
                               [](ModelShape& m) {
                                 m.mla.reset();
                                 m.rope.scaling = {};
                               }),
                       "model.multi_latent_attention=false: config.json of a deepseek_v3"));
  // A head_dim would make it computable, but LlamaConfig rejects it.
  EXPECT_TRUE(contains(refused(llama(), [](ModelShape& m) { m.hidden = 60; }), "transformers refuses such a llama"));
}

// Which layers have experts, and which projections biases, can be written in several ways; the message uses the user's.
TEST(HfConfig, WhatCannotBeSaidIsNamedAsItWasWritten) {
  const auto refused = [](const Json& config, const std::function<void(ModelConfig&)>& change) {
    ModelConfig written = parse(config);
    written.moe.decoder_sparse_step = 1;
    written.moe.mlp_only_layers.clear();
    change(written);
    const ModelShape shape = shape_of(written);
    return message_of<UserError>([&] { format_hf_config(shape, {.source = "", .dtype = "", .written = &written}); });
  };
  EXPECT_EQ(refused(mixtral(), [](ModelConfig& m) { m.moe.first_k_dense = 1; }),
            "model.moe.first_k_dense=1: config.json of a mixtral cannot say that");
  EXPECT_EQ(refused(mixtral(),
                    [](ModelConfig& m) {
                      m.moe.mlp_only_layers = {1, 2};
                    }),
            "model.moe.mlp_only_layers=[1, 2]: config.json of a mixtral cannot say that, it would mean []");
  EXPECT_EQ(refused(deepseek_v3(),
                    [](ModelConfig& m) {
                      m.moe.first_k_dense = 1;
                      m.moe.layer_freq = 2;
                    }),
            "model.moe.layer_freq=2: config.json of a deepseek_v3 cannot say that");
  EXPECT_EQ(refused(of_type("mistral"), [](ModelConfig& m) { m.add_bias_linear = true; }),
            "model.add_bias_linear=true: config.json of a mistral cannot say that");
}

// Older ones do not know the model.
TEST(HfConfig, TheVersionOfTransformersHasTheModel) {
  const auto version = [](const Json& config) {
    return Json::parse(format_hf_config(shape_of(parse(config)), {.source = "", .dtype = ""}))["transformers_version"];
  };
  EXPECT_EQ(version(llama()), "4.46.0");
  EXPECT_EQ(version(of_type("qwen3")), "4.51.0");
  EXPECT_EQ(version(qwen3_moe()), "4.51.0");
  EXPECT_EQ(version(deepseek_v3()), "4.51.0");
  EXPECT_EQ(version(deepseek_v2()), "4.54.0");
}

// LlamaConfig wants it within [0,1]; it says nothing about a model that is trained.
TEST(HfConfig, AnInitializerRangeThatTransformersRefusesIsLeftOut) {
  ModelShape shape = shape_of(parse(llama()));
  shape.init_std = 2;
  EXPECT_FALSE(Json::parse(format_hf_config(shape, {.source = "", .dtype = ""})).contains("initializer_range"));
  shape.init_std = 0.5;
  EXPECT_EQ(Json::parse(format_hf_config(shape, {.source = "", .dtype = ""}))["initializer_range"], 0.5);
}

// --- model.hf in a run's config

TEST(HfConfig, ModelHfDecidesTheShape) {
  const TempFolder folder;
  folder.write("hf/config.json", llama().dump());
  const std::string hf = "model.hf=" + (folder / "hf").string();
  const auto file = folder.write("run.yaml", "train: {seq_length: 16}\nmodel: {hidden_dropout: 0.1}\n").string();
  const LoadedConfig loaded = load_config(file, std::vector{hf});
  EXPECT_EQ(loaded.config.model.hidden_size, 64);
  EXPECT_EQ(loaded.config.model.arch, &family_named("llama"));
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
}

TEST(HfConfig, ModelHfDecidesTheExpertsAndNotHowTheyAreTrained) {
  const TempFolder folder;
  folder.write("hf/config.json", qwen3_moe().dump());
  const auto load = [&](const char* key) {
    const auto file = folder.write("run.yaml", "train: {seq_length: 16}\n").string();
    return load_config(file, std::vector{"model.hf=" + (folder / "hf").string(), std::string(key)}).config.model.moe;
  };
  EXPECT_EQ(load("model.moe.aux_loss_coeff=0.25").aux_loss_coeff, std::vector<double>{0.25});
  EXPECT_EQ(load("model.moe.token_dispatcher_type=alltoall").token_dispatcher_type, TokenDispatcher::alltoall);
  EXPECT_EQ(load("model.moe.expert_capacity_factor=1").num_experts, 16);
  EXPECT_TRUE(contains(message_of<UserError>([&] { load("model.moe.router_topk=2"); }),
                       "model.moe.router_topk=2 (command line): the model in"));
}

TEST(HfConfig, TheSameInOtherWordsIsNoMistake) {
  const TempFolder folder;
  const auto load = [&](Json config, const std::string& key) {
    folder.write("hf/config.json", config.dump());
    const auto file = folder.write("run.yaml", "train: {seq_length: 16}\n").string();
    return load_config(file, std::vector{"model.hf=" + (folder / "hf").string(), key}).config.model;
  };
  Json moe = qwen3_moe(), dense = llama();
  moe["mlp_only_layers"] = {0};
  EXPECT_NO_THROW(load(moe, "model.moe.first_k_dense=1"));
  const std::string wrong = message_of<UserError>([&] { load(moe, "model.moe.first_k_dense=2"); });
  EXPECT_TRUE(contains(wrong, "model.moe.first_k_dense=2 (command line): the model in")) << wrong;
  dense["num_key_value_heads"] = dense["num_attention_heads"];
  EXPECT_NO_THROW(load(dense, "model.num_query_groups=0"));
  dense["num_key_value_heads"] = 1;
  EXPECT_TRUE(contains(message_of<UserError>([&] { load(dense, "model.num_query_groups=0"); }), "has 1; leave"));
}

// The message of a load.
std::string mistake(const std::filesystem::path& file, const std::vector<std::string>& overrides) {
  return message_of<UserError>([&] { load_config(file.string(), overrides); });
}

TEST(HfConfig, WrongFoldersAreDistinguished) {
  const TempFolder folder;
  folder.write("hf/config.json", llama().dump());
  folder.write("ck/latest", "step_00000001\n");
  const auto step = folder.write("ck/step_00000001/manifest.json", "{}");
  folder.write("ck/step_00000001/config.json", llama().dump());
  const auto file = folder.write("run.yaml", "model: {arch: llama}\n");
  const auto path = [&](const char* name) { return (folder / name).string(); };
  EXPECT_TRUE(contains(mistake(file, {"model.hf=" + path("none")}), "there is no such folder; models are not fetched"));
  EXPECT_TRUE(contains(mistake(file, {"model.hf=Qwen/Qwen3-0.6B"}), "models are not fetched from the hub"));
  for (const char* name : {"ck", "ck/step_00000001"})
    EXPECT_TRUE(contains(mistake(file, {"model.hf=" + path(name)}), "use checkpoint.load=" + path(name)));
  EXPECT_TRUE(contains(mistake(file, {"checkpoint.load=" + path("hf")}), "use model.hf=" + path("hf")));
  EXPECT_TRUE(contains(mistake(file, {"checkpoint.load=" + path("ck/latest")}), "it is a file"));
  EXPECT_TRUE(contains(mistake(file, {"checkpoint.load=" + step.string()}), "it is a file"));
  EXPECT_TRUE(contains(mistake(file, {"checkpoint.load=" + folder.path().string()}), "they are in " + path("ck")));
  EXPECT_TRUE(contains(mistake(file, {"checkpoint.save=" + path("hf")}), "it is a Hugging Face folder"));
}

// --- its tokenizer

TEST(HfConfig, TheFoldersTokenizerIsUsedOrMissed) {
  const TempFolder folder;
  folder.write("hf/config.json", gpt2().dump());
  const std::string path = (folder / "hf").string();
  const auto file = folder.write("run.yaml", "dataset: {kind: text, data_path: [x]}\nmodel: {hf: " + path + "}\n");
  const auto tokenizer = [&](const std::vector<std::string>& overrides = {}) {
    return load_config(file.string(), overrides).config.tokenizer;
  };
  EXPECT_TRUE(contains(mistake(file, {}), "has no tokenizer.json; name one with tokenizer.tokenizer_type"));
  EXPECT_NO_THROW(tokenizer({"dataset.kind=mock"})) << "needs none";
  EXPECT_EQ(tokenizer({"tokenizer.tokenizer_type=ByteTokenizer"}).tokenizer_type, TokenizerKind::byte) << "as told";
  folder.write("hf/tokenizer.model", "x");
  EXPECT_TRUE(contains(mistake(file, {}), "tokenizer.tokenizer_model=" + path + "/tokenizer.model"));

  folder.write("hf/vocab.json", "{}");
  folder.write("hf/merges.txt", "");
  folder.write("hf/tokenizer_config.json", R"({"model_max_length": 1024, "tokenizer_class": "GPT2Tokenizer"})");
  EXPECT_EQ(tokenizer().tokenizer_type, TokenizerKind::gpt2_bpe);
  EXPECT_EQ(tokenizer().vocab_file, path + "/vocab.json");
  EXPECT_TRUE(contains(mistake(file, {"tokenizer.tokenizer_type=HuggingFaceTokenizer"}), "has no tokenizer.json"));
  folder.write("hf/tokenizer_config.json", R"({"tokenizer_class": "Qwen2Tokenizer"})");
  EXPECT_TRUE(contains(mistake(file, {}), "has no tokenizer.json")) << "which would cut words in another way";
  folder.write("hf/tokenizer_config.json", "{}");
  folder.write("hf/added_tokens.json", "{}");
  EXPECT_TRUE(contains(mistake(file, {}), "has no tokenizer.json"));

  folder.write("hf/tokenizer.json", "{}");
  for (const std::vector<std::string>& named :
       {std::vector<std::string>{}, {"tokenizer.tokenizer_type=HuggingFaceTokenizer"}}) {
    EXPECT_EQ(tokenizer(named).tokenizer_type, TokenizerKind::hugging_face);
    EXPECT_EQ(tokenizer(named).tokenizer_model, path);
  }
}

TEST(HfConfig, ARunKnowsWhetherItsTokenizerIsItsOwn) {
  RunConfig config;
  config.dataset.kind = DatasetKind::text;
  EXPECT_TRUE(uses_custom_tokenizer(config)) << "the model is its own";
  config.model.hf = "models/x/";
  EXPECT_TRUE(uses_custom_tokenizer(config)) << "bytes";
  config.tokenizer.tokenizer_type = TokenizerKind::hugging_face;
  for (const char* same : {"models/x", "models/x/tokenizer.json", "models/y/../x", "runs/ck/step_00000003"}) {
    config.tokenizer.tokenizer_model = same;
    EXPECT_FALSE(uses_custom_tokenizer(config)) << same;
  }
  config.tokenizer.tokenizer_model = "models/y";
  EXPECT_TRUE(uses_custom_tokenizer(config));
}

// --- what checkpoints know

TEST(HfConfig, AModelThatIsNotDescribedIsTheCheckpoints) {
  const TempFolder folder;
  folder.write("ck/latest", "step_00000001\n");
  StoredRun stored{.where = "ck/step_00000001", .config = {}, .custom_tokenizer = true, .hf_config = ""};
  stored.config.model = parse(llama());
  stored.config.model.hf = "gone";
  stored.config.tokenizer.tokenizer_type = TokenizerKind::null;
  std::vector<std::string> requested;
  const FindStoredRun find = [&](const std::string& path, Families) {
    requested.push_back(path);
    return stored;
  };
  const std::string ck = (folder / "ck").string();
  const auto load = [&](const std::string& yaml, const std::vector<std::string>& overrides) {
    return load_config(folder.write("run.yaml", yaml).string(), overrides, find).config;
  };
  RunConfig config = load("train: {seq_length: 8}\n", {"checkpoint.load=" + ck});
  EXPECT_EQ(config.model.hidden_size, 64);
  EXPECT_EQ(config.model.hf, "") << "whose tokenizer it no longer has";
  EXPECT_EQ(config.tokenizer.tokenizer_type, TokenizerKind::null);
  EXPECT_EQ(load("train: {seq_length: 8}\n", {"checkpoint.save=" + ck}).model.hidden_size, 64);
  EXPECT_EQ(requested, (std::vector<std::string>{ck, ck}));
  EXPECT_EQ(load("model: {hidden_dropout: 0.5}\n", {"checkpoint.load=" + ck}).model.hidden_dropout, 0.5);
  EXPECT_TRUE(contains(message_of<UserError>([&] { load("model: {hidden_size: 32}\n", {"checkpoint.load=" + ck}); }),
                       "the model in ck/step_00000001 has 64"));
  requested.clear();
  EXPECT_EQ(load("model: {arch: qwen2}\n", {"checkpoint.load=" + ck}).model.hidden_size, 0);
  EXPECT_TRUE(requested.empty()) << "it is described";
}

TEST(HfConfig, AFolderThatIsGoneIsRemembered) {
  const TempFolder folder;
  folder.write("ck/latest", "step_00000001\n");
  StoredRun stored{.where = "ck/step_00000001", .config = {}, .custom_tokenizer = false, .hf_config = llama().dump()};
  stored.config.model.hf = "gone";
  stored.config.tokenizer.tokenizer_type = TokenizerKind::hugging_face;
  stored.config.tokenizer.tokenizer_model = "ck/step_00000001";
  const auto load = [&](const std::string& hf) {
    return load_config(folder.write("run.yaml", "dataset: {kind: text}\n").string(),
                       std::vector{"model.hf=" + hf, "checkpoint.save=" + (folder / "ck").string()},
                       [&](const std::string&, Families) { return stored; })
        .config;
  };
  EXPECT_EQ(load("gone").model.hidden_size, 64);
  EXPECT_EQ(load("gone").model.hf, "gone");
  EXPECT_EQ(load("gone").tokenizer.tokenizer_model, "ck/step_00000001");
  EXPECT_TRUE(contains(message_of<UserError>([&] { load("another"); }), "there is no such folder"));
}

}  // namespace
}  // namespace tera::test
