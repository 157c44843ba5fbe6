// Folders with odd or wrong content: read right, or refused with the name of what is wrong.

#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "tera/base/checksum.h"
#include "tera/base/error.h"
#include "tera/checkpoint/checkpoint_weights.h"
#include "tera/hf/config/hf_config.h"
#include "tera/hf/hf_describe.h"
#include "tera/hf/hf_export.h"
#include "tera/hf/hf_files.h"
#include "tera/hf/hf_folder.h"
#include "tera/setup/resolve.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace tera::test {
namespace {

namespace fs = std::filesystem;

constexpr const char* tied_llama = R"({"model_type": "llama", "hidden_size": 8, "intermediate_size": 6,
  "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 5,
  "max_position_embeddings": 16, "tie_word_embeddings": true})";

ModelShape shape_of(const ModelConfig& model) {
  RunConfig config;
  config.model = model;
  config.train.seq_length = model.max_position_embeddings;
  return resolve(config, Purpose::inspect).model;
}

// A folder of a model whose numbers give their position.
class OddFolder : public testing::Test {
 protected:
  OddFolder() {
    folder_.write("config.json", tied_llama);
    for (const ModelTensor& tensor : list_tensors(shape_of(parse_config()))) tensors_[tensor.name] = fill(tensor.shape);
  }
  static ModelConfig parse_config() { return parse_hf_config(tied_llama, "config.json"); }
  struct Values {
    Shape shape;
    std::vector<float> values;
  };
  Values fill(const Shape& shape) {
    Values tensor{shape, {}};
    for (std::int64_t i = 0; i < count(shape); ++i) tensor.values.push_back(next_++);
    return tensor;
  }
  void write(const std::string& file, const std::map<std::string, Values>& tensors) const {
    std::vector<SafetensorsSpec> specs;
    for (const auto& [name, tensor] : tensors) specs.push_back({name, DType::f32, tensor.shape});
    SafetensorsWriter writer(folder_ / file, specs);
    for (const auto& [name, tensor] : tensors) writer.write(name, std::as_bytes(std::span(tensor.values)));
    writer.finish();
  }
  void write_all() const { write("model.safetensors", tensors_); }
  std::string refusal() const {
    return message_of<UserError>([&] {
      const HfFolder folder(folder_.path());
      check_tensors(folder, shape_of(folder.model()));
    });
  }
  static std::vector<float> read(const HfFolder& folder, const std::string& name) {
    const WeightBox box = full_box(folder.tensors().at(name).shape);
    std::vector<float> out(static_cast<std::size_t>(box.elements()));
    folder.read(name, box, std::as_writable_bytes(std::span(out)));
    return out;
  }

  TempFolder folder_;
  std::map<std::string, Values> tensors_;
  float next_ = 1;
};

const std::string table = "model.embed_tokens.weight", head = "lm_head.weight";

TEST_F(OddFolder, ReadsBoxesOfRowsAndColumns) {
  write_all();
  const HfFolder folder(folder_.path());
  const std::vector<float> whole = read(folder, table);
  EXPECT_EQ(whole, tensors_[table].values);
  std::vector<float> box(6);
  folder.read(table, {.row_begin = 2, .row_end = 5, .column_begin = 3, .column_end = 5},
              std::as_writable_bytes(std::span(box)));
  EXPECT_EQ(box, (std::vector<float>{whole[19], whole[20], whole[27], whole[28], whole[35], whole[36]}));
}

TEST_F(OddFolder, OneFileComesBeforeAnIndex) {
  write_all();
  folder_.write("model.safetensors.index.json", "not even JSON");
  EXPECT_EQ(read(HfFolder(folder_.path()), table), tensors_[table].values);
}

TEST_F(OddFolder, LinksAreFollowedAsInTheHubsCache) {
  write_all();
  fs::create_directories(folder_ / "cache/blobs");
  fs::create_directories(folder_ / "cache/snapshots/abc");
  for (const char* name : {"config.json", "model.safetensors"}) {
    fs::rename(folder_ / name, folder_ / "cache/blobs" / name);
    fs::create_symlink(fs::path("../../blobs") / name, folder_ / "cache/snapshots/abc" / name);
  }
  EXPECT_EQ(read(HfFolder(folder_ / "cache/snapshots/abc"), table), tensors_[table].values);
}

TEST_F(OddFolder, IndexNamesArePlainFileNames) {
  write("shard.safetensors", tensors_);
  for (const char* name : {"../shard.safetensors", "/etc/passwd", "a/b.safetensors", "", ".hidden"}) {
    nlohmann::json index;
    index["weight_map"][table] = name;
    folder_.write("model.safetensors.index.json", index.dump());
    EXPECT_TRUE(contains(refusal(), "no plain file name")) << name;
  }
  folder_.write("model.safetensors.index.json", R"({"weight_map": {"x": 3}})");
  EXPECT_TRUE(contains(refusal(), "no plain file name"));
  folder_.write("model.safetensors.index.json", R"({"metadata": {}})");
  EXPECT_TRUE(contains(refusal(), "weight_map is missing"));
  folder_.write("model.safetensors.index.json", R"({"weight_map": {"model.absent": "shard.safetensors"}})");
  EXPECT_TRUE(contains(refusal(), "says that 'model.absent' is in shard.safetensors"));
  folder_.write("model.safetensors.index.json", R"({"weight_map": {"x": "absent.safetensors"}})");
  EXPECT_TRUE(contains(refusal(), "absent.safetensors"));
}

TEST_F(OddFolder, PicklesAreRefusedWithAdvice) {
  folder_.write("pytorch_model.bin", "\x80\x04");
  EXPECT_TRUE(contains(refusal(), "safe_serialization=True"));
}

TEST_F(OddFolder, WithoutWeightsItSaysWhatIsMissing) {
  EXPECT_TRUE(contains(refusal(), "neither model.safetensors nor model.safetensors.index.json"));
}

TEST_F(OddFolder, ATiedHeadThatEqualsTheTableIsLeftOut) {
  tensors_[head] = tensors_[table];
  write_all();
  const HfFolder folder(folder_.path());
  EXPECT_FALSE(folder.tensors().contains(head));
  EXPECT_NO_THROW(check_tensors(folder, shape_of(folder.model())));
}

TEST_F(OddFolder, ATiedHeadThatDiffersIsRefused) {
  tensors_[head] = fill(tensors_[table].shape);
  write_all();
  EXPECT_TRUE(contains(refusal(), "tie_word_embeddings"));
}

// Two files that hold the table in two dtypes: what counts is what the numbers are.
TEST_F(OddFolder, ATiedHeadIsComparedByValue) {
  Values& values = tensors_[table];
  const auto write_head = [&](DType dtype, float change) {
    SafetensorsWriter writer(folder_ / "head.safetensors", {{head, dtype, values.shape}});
    std::vector<std::byte> bytes;
    for (float value : values.values) {
      if (value == values.values.back()) value += change;
      const double wide = value;
      const BFloat16 half = to_bf16(value);
      const auto* from =
          dtype == DType::f64 ? reinterpret_cast<const std::byte*>(&wide) : reinterpret_cast<const std::byte*>(&half);
      bytes.insert(bytes.end(), from, from + size_of(dtype));
    }
    writer.write(head, bytes);
    writer.finish();
  };
  write("rest.safetensors", tensors_);
  nlohmann::json index;
  for (const auto& entry : tensors_) index["weight_map"][entry.first] = "rest.safetensors";
  index["weight_map"][head] = "head.safetensors";
  folder_.write("model.safetensors.index.json", index.dump());
  for (const DType dtype : {DType::f64, DType::bf16}) {
    write_head(dtype, 0);
    EXPECT_NO_THROW(HfFolder(folder_.path())) << name_of(dtype);
    write_head(dtype, 64);
    EXPECT_TRUE(contains(refusal(), "tie_word_embeddings")) << name_of(dtype);
  }
  SafetensorsWriter numbers(folder_ / "head.safetensors", {{head, DType::i32, values.shape}});
  numbers.write(head, std::as_bytes(std::span(values.values)));
  numbers.finish();
  EXPECT_TRUE(contains(refusal(), "holds i32, not floats"));
}

TEST_F(OddFolder, MissingExtraAndMisshapenTensorsAreNamed) {
  tensors_.erase("model.norm.weight");
  tensors_["model.layers.7.strange.weight"] = fill(shape(2));
  tensors_["model.layers.0.mlp.up_proj.weight"] = fill(shape(7, 8));
  write_all();
  const std::string message = refusal();
  EXPECT_TRUE(contains(message, "it lacks 'model.norm.weight'")) << message;
  EXPECT_TRUE(contains(message, "model.layers.0.mlp.up_proj.weight [7,8], not [6,8]")) << message;
  EXPECT_TRUE(contains(message, "not of this model: 'model.layers.7.strange.weight'")) << message;
}

TEST_F(OddFolder, ConsolidatedAndAdapterFilesAreNotLookedAt) {
  write_all();
  folder_.write("consolidated.safetensors", "rubbish");
  folder_.write("adapter_model.safetensors", "rubbish");
  EXPECT_EQ(HfFolder(folder_.path()).file_count(), 1u);
}

TEST_F(OddFolder, IsDescribed) {
  write_all();
  const auto rows = describe_hf_folder(folder_.path());
  EXPECT_EQ(rows["arch"], "llama");
  EXPECT_EQ(rows["tensors"], tensors_.size());
  EXPECT_EQ(rows["dtype"], "f32");
}

TEST_F(OddFolder, StopTokensAreANumberOrAList) {
  EXPECT_TRUE(hf_stop_tokens(HfFiles(folder_.path())).empty());
  folder_.write("config.json", R"({"eos_token_id": 7})");
  EXPECT_EQ(hf_stop_tokens(HfFiles(folder_.path())), std::vector<std::int32_t>{7});
  folder_.write("generation_config.json", R"({"eos_token_id": [3, 4]})");
  EXPECT_EQ(hf_stop_tokens(HfFiles(folder_.path())), (std::vector<std::int32_t>{3, 4}));
}

// --- experts

// One layer of two experts in the format of transformers 5; numbers give their position.
class FusedFolder : public OddFolder {
 protected:
  static constexpr std::int64_t experts = 2, ffn = 3, hidden = 4;
  const std::string gate_up = "model.layers.0.mlp.experts.gate_up_proj", down = "model.layers.0.mlp.experts.down_proj",
                    router = "model.layers.0.mlp.gate.weight";

  FusedFolder() {
    tensors_.clear();
    next_ = 0;
    tensors_[gate_up] = fill(shape(experts, 2 * ffn, hidden));  // 0 .. 47
    tensors_[down] = fill(shape(experts, hidden, ffn));         // 48 .. 71
    tensors_[router] = fill(shape(experts, hidden));            // 72 .. 79
  }
  void write_model(const char* type) const {
    nlohmann::json config{{"model_type", type},       {"hidden_size", hidden},    {"intermediate_size", ffn},
                          {"num_hidden_layers", 1},   {"num_attention_heads", 2}, {"num_key_value_heads", 1},
                          {"vocab_size", 5},          {"num_local_experts", 2},   {"moe_intermediate_size", ffn},
                          {"num_experts_per_tok", 2}, {"norm_topk_prob", true},   {"max_position_embeddings", 16}};
    folder_.write("config.json", config.dump());
    write_all();
  }
  static std::vector<float> from(float first, std::int64_t count) {
    std::vector<float> numbers;
    for (std::int64_t i = 0; i < count; ++i) numbers.push_back(first + static_cast<float>(i));
    return numbers;
  }
};

TEST_F(FusedFolder, ExpertsAreListedOneByOne) {
  struct Names {
    const char *type, *block, *gate, *up, *down;
  };
  for (const Names& names : {Names{"mixtral", "block_sparse_moe.", "w1", "w3", "w2"},
                             Names{"qwen3_moe", "mlp.", "gate_proj", "up_proj", "down_proj"}}) {
    write_model(names.type);
    const HfFolder folder(folder_.path());
    const std::string layer = std::string("model.layers.0.") + names.block;
    const auto of = [&](int expert, const char* part) {
      return layer + "experts." + std::to_string(expert) + "." + part + ".weight";
    };
    EXPECT_EQ(folder.tensors().size(), 7u);
    EXPECT_EQ(folder.tensors().at(of(1, names.up)).shape, shape(ffn, hidden));
    EXPECT_EQ(folder.tensors().at(of(1, names.down)).shape, shape(hidden, ffn));
    EXPECT_EQ(read(folder, of(0, names.gate)), from(0, 12)) << names.type;
    EXPECT_EQ(read(folder, of(0, names.up)), from(12, 12));
    EXPECT_EQ(read(folder, of(1, names.gate)), from(24, 12));
    EXPECT_EQ(read(folder, of(1, names.up)), from(36, 12));
    EXPECT_EQ(read(folder, of(0, names.down)), from(48, 12));
    EXPECT_EQ(read(folder, of(1, names.down)), from(60, 12));
    EXPECT_EQ(read(folder, layer + "gate.weight"), from(72, 8));
    std::vector<float> box(2);
    folder.read(of(1, names.up), {.row_begin = 1, .row_end = 3, .column_begin = 2, .column_end = 3},
                std::as_writable_bytes(std::span(box)));
    EXPECT_EQ(box, (std::vector<float>{42, 46})) << "a box of rows and columns inside";
  }
}

TEST_F(FusedFolder, ExpertsOneByOneStayAsTheyAre) {
  tensors_.clear();
  const std::string name = "model.layers.0.block_sparse_moe.experts.1.w3.weight";
  tensors_[name] = fill(shape(ffn, hidden));
  write_model("mixtral");
  const HfFolder folder(folder_.path());
  EXPECT_EQ(folder.tensors().size(), 1u);
  EXPECT_EQ(read(folder, name), tensors_[name].values);
}

// Published files have an MTP layer after the last layer.
TEST_F(FusedFolder, LayersAfterTheLastOfADeepseekAreLeftOut) {
  const std::string extra_layer = "model.layers.1.eh_proj.weight", inside = "model.layers.0.self_attn.o_proj.weight";
  tensors_ = {{extra_layer, fill(shape(hidden, 2 * hidden))}, {inside, fill(shape(hidden, hidden))}};
  nlohmann::json config{
      {"model_type", "deepseek_v3"}, {"hidden_size", hidden},    {"intermediate_size", ffn}, {"num_hidden_layers", 1},
      {"num_attention_heads", 2},    {"num_key_value_heads", 2}, {"vocab_size", 5},          {"n_routed_experts", 16},
      {"first_k_dense_replace", 0}};
  folder_.write("config.json", config.dump());
  write_all();
  const HfFolder folder(folder_.path());
  EXPECT_EQ(folder.tensors().size(), 1u);
  EXPECT_TRUE(folder.tensors().contains(inside));
}

// An MTP layer with all its tensors is read; its copies of the tables must be copies.
TEST_F(FusedFolder, MtpLayersAreTaken) {
  nlohmann::json config{{"model_type", "deepseek_v3"},
                        {"hidden_size", hidden},
                        {"intermediate_size", ffn},
                        {"num_hidden_layers", 1},
                        {"num_attention_heads", 2},
                        {"num_key_value_heads", 2},
                        {"vocab_size", 5},
                        {"n_routed_experts", 16},
                        {"first_k_dense_replace", 0},
                        {"num_nextn_predict_layers", 0}};
  folder_.write("config.json", config.dump());
  const std::string extra_layer = "model.layers.1.", head_name = "lm_head.weight";
  tensors_.clear();
  tensors_[table] = fill(shape(5, hidden));
  tensors_[head_name] = fill(shape(5, hidden));
  tensors_[extra_layer + "enorm.weight"] = fill(shape(hidden));
  tensors_[extra_layer + "eh_proj.weight"] = fill(shape(hidden, 2 * hidden));
  tensors_[extra_layer + "embed_tokens.weight"] = tensors_[table];
  tensors_[extra_layer + "shared_head.head.weight"] = tensors_[head_name];
  tensors_["model.layers.3.enorm.weight"] = fill(shape(hidden));  // not the next layer: it belongs to none
  write_all();
  const HfFolder folder(folder_.path());
  EXPECT_EQ(folder.model().mtp_num_layers, 1);
  EXPECT_EQ(folder.tensors().size(), 4u);
  EXPECT_NO_THROW(folder.check_copies());
  EXPECT_EQ(read(folder, extra_layer + "eh_proj.weight"), tensors_[extra_layer + "eh_proj.weight"].values);
  EXPECT_FALSE(folder.tensors().contains(extra_layer + "embed_tokens.weight"));

  // Layers of another model are never left out, whether the model asks for MTP layers or not.
  const ModelShape model = shape_of(folder.model());
  EXPECT_TRUE(contains(refusal(), "it lacks"));
  EXPECT_FALSE(contains(refusal(), "not of this model"));
  ModelShape without = model;
  without.mtp_layers = 0;
  const std::string message = message_of<UserError>([&] { check_tensors(folder, without); });
  EXPECT_FALSE(contains(message, "not of this model")) << message;
  EXPECT_FALSE(contains(message, "hnorm")) << message;

  tensors_[extra_layer + "shared_head.head.weight"] = tensors_[table];
  write_all();
  const HfFolder another(folder_.path());  // opens: without these layers the difference does not matter
  EXPECT_TRUE(contains(message_of<UserError>([&] { another.check_copies(); }),
                       "model.layers.1.shared_head.head.weight and lm_head.weight differ"));
}

TEST_F(FusedFolder, WhatIsMisshapenOrThereTwiceIsRefused) {
  const auto message = [&] {
    write_model("qwen3_moe");
    return message_of<UserError>([&] { HfFolder(folder_.path()); });
  };
  const Values good = tensors_[gate_up];
  for (const Shape& bad : {shape(2, 3, 4), shape(3, 6, 4), shape(12, 4), shape(2, 4, 6)}) {
    tensors_[gate_up] = fill(bad);
    EXPECT_TRUE(contains(message(), "'" + gate_up + "' is " + to_string(bad) + ", not [2,6,4]")) << message();
  }
  tensors_[gate_up] = good;
  const std::string twice = "model.layers.0.mlp.experts.1.down_proj.weight";
  tensors_[twice] = fill(shape(hidden, ffn));
  EXPECT_TRUE(contains(message(), "'" + twice + "' is there, and in '" + down + "' once more")) << message();
}

// --- checkpoints

TEST_F(OddFolder, ACheckpointOfNumbersThatAreNoFloatsIsRefused) {
  const std::string name = "model.norm.weight", file = "rank_00000.safetensors";
  const std::vector<std::int32_t> numbers(8);
  fs::create_directories(folder_ / "ck");
  SafetensorsWriter writer(folder_ / "ck" / file, {{name, DType::i32, shape(8)}});
  writer.write(name, std::as_bytes(std::span(numbers)));
  writer.finish();
  const std::string bytes = slurp(folder_ / "ck" / file);
  Manifest manifest;
  manifest.files.push_back(
      {.name = file, .bytes = bytes.size(), .crc32c = crc32c(std::as_bytes(std::span(bytes.data(), bytes.size())))});
  manifest.tensors[name] = {
      .dtype = DType::i32,
      .shape = shape(8),
      .pieces = {{.file = 0, .offset = bytes.size() - sizeof(numbers[0]) * 8, .slice = full_slice(shape(8))}}};
  folder_.write("ck/manifest.json", format_manifest(manifest));
  const Checkpoint checkpoint(folder_ / "ck");
  EXPECT_TRUE(contains(message_of<UserError>([&] { CheckpointWeights(checkpoint, shape_of(parse_config())); }),
                       "holds i32, not floats"));
}

// --- export

TEST_F(OddFolder, ShardsStayUnderTheLimitAndTheIndexNamesThem) {
  write_all();
  folder_.write("tokenizer.json", "{\"a\": 1}");
  folder_.write("generation_config.json", "{}");
  const HfFolder folder(folder_.path());
  const fs::path out = folder_ / "out";
  const auto result = export_hf(folder, shape_of(folder.model()), out,
                                {.dtype = {}, .max_shard_bytes = 700, .carried = HfFiles(folder_.path())});
  EXPECT_GT(result.files, 2u);
  for (const auto& entry : fs::directory_iterator(out))
    EXPECT_TRUE(entry.path().extension() != ".safetensors" || entry.file_size() <= 700u) << entry.path();
  const HfFolder again(out);
  for (const auto& [name, tensor] : tensors_) EXPECT_EQ(read(again, name), tensor.values) << name;
  EXPECT_EQ(slurp(out / "tokenizer.json"), "{\"a\": 1}");
  EXPECT_EQ(slurp(out / "generation_config.json"), "{}");
}

TEST_F(OddFolder, AnExportNeverOverwritesAndLeavesNothingHalf) {
  write_all();
  const HfFolder folder(folder_.path());
  const ModelShape model = shape_of(folder.model());
  folder_.write("full/file", "x");
  EXPECT_TRUE(contains(message_of<UserError>([&] { export_hf(folder, model, folder_ / "full", {}); }), "not an empty"));
  fs::create_directories(folder_ / "empty");
  EXPECT_NO_THROW(export_hf(folder, model, folder_ / "empty", {}));
  ModelShape strange = model;
  strange.qk_norm = true;
  message_of<UserError>([&] { export_hf(folder, strange, folder_ / "never", {}); });
  for (const auto& entry : fs::directory_iterator(folder_.path()))
    EXPECT_FALSE(entry.path().filename().string().starts_with("never")) << entry.path();
}

}  // namespace
}  // namespace tera::test
