// Folders whose weights are 8-bit floats with a scale for each block.

#include <gtest/gtest.h>

#include <bit>

#include "tera/base/error.h"
#include "tera/hf/config/hf_config.h"
#include "tera/hf/hf_describe.h"
#include "tera/hf/hf_export.h"
#include "tera/hf/hf_folder.h"
#include "tera/setup/resolve.h"
#include "tests/support/expect_error.h"
#include "tests/support/float8_file.h"
#include "tests/support/temp_folder.h"

namespace tera::test {
namespace {

using Json = nlohmann::json;

TEST(Float8, EveryCodeIsWhatItsBitsSay) {
  for (int code = 0; code < 256; ++code) {
    const auto bits = static_cast<std::uint8_t>(code);
    for (const auto& [kind, exponent_bits] : {std::pair{Float8Kind::e4m3, 4}, std::pair{Float8Kind::e5m2, 5}}) {
      const float want = float8_value(bits, exponent_bits), got = to_float(kind, bits);
      EXPECT_EQ(std::isnan(got), std::isnan(want)) << code;
      if (!std::isnan(want)) {
        EXPECT_EQ(std::bit_cast<std::uint32_t>(got), std::bit_cast<std::uint32_t>(want)) << code << ": also -0";
      }
    }
  }
  EXPECT_EQ(to_float(Float8Kind::e4m3, 0x7e), 448.0f);
  EXPECT_EQ(to_float(Float8Kind::e4m3, 0x01), 0x1p-9f);
  EXPECT_EQ(to_float(Float8Kind::e5m2, 0x7b), 57344.0f);
}

class Float8Boxes : public testing::Test {
 protected:
  // Compares every value of a slice with the full tensor.
  static void expect_box(const ScaledFloat8& tensor, const std::vector<float>& whole, const WeightBox& box) {
    const std::int64_t columns = tensor.shape().last();
    std::vector<float> got(static_cast<std::size_t>(box.elements()));
    tensor.read(box, std::as_writable_bytes(std::span(got)));
    auto at = got.begin();
    int wrong = 0;
    for (std::int64_t r = box.row_begin; r < box.row_end; ++r)
      for (std::int64_t c = box.column_begin; c < box.column_end; ++c)
        wrong += *at++ == whole[static_cast<std::size_t>(r * columns + c)] ? 0 : 1;
    EXPECT_EQ(wrong, 0) << "rows " << box.row_begin << " to " << box.row_end << ", columns " << box.column_begin
                        << " to " << box.column_end;
  }
  TempFolder folder_;
};

TEST_F(Float8Boxes, LastBlocksAreSmallerAndBoxesBeginAnywhere) {
  const Float8Matrix matrix = make_float8(576, 300, 128, 128, 1);
  ASSERT_EQ(matrix.scales.size(), 5u * 3);
  write_raw_safetensors(folder_ / "f", {{"w", "F8_E4M3", {576, 300}, bytes_of(matrix.codes)},
                                        {"s", "F32", {5, 3}, bytes_of(matrix.scales)}});
  const SafetensorsFile file(folder_ / "f");
  const ScaledFloat8 tensor(file, "w", file, "s", {});
  for (const WeightBox& box :
       {WeightBox{0, 576, 0, 300}, WeightBox{0, 288, 0, 300}, WeightBox{288, 576, 0, 300}, WeightBox{0, 576, 150, 300},
        WeightBox{127, 129, 127, 129}, WeightBox{512, 576, 256, 300}, WeightBox{575, 576, 299, 300},
        WeightBox{70, 460, 101, 257}, WeightBox{5, 5, 0, 300}})
    expect_box(tensor, matrix.values, box);
}

TEST_F(Float8Boxes, BlocksOfAnySizeBeginAnewInEachMatrix) {
  const std::int64_t matrices = 3, rows = 7, columns = 11;
  Float8Matrix all;
  for (std::uint32_t i = 0; i < matrices; ++i) {
    const Float8Matrix one = make_float8(rows, columns, 4, 5, 7 + i);
    all.codes.insert(all.codes.end(), one.codes.begin(), one.codes.end());
    all.scales.insert(all.scales.end(), one.scales.begin(), one.scales.end());
    all.values.insert(all.values.end(), one.values.begin(), one.values.end());
  }
  write_raw_safetensors(folder_ / "f", {{"w", "F8_E4M3", {matrices, rows, columns}, bytes_of(all.codes)},
                                        {"s", "F32", {matrices, 2, 3}, bytes_of(all.scales)}});
  const SafetensorsFile file(folder_ / "f");
  const ScaledFloat8 tensor(file, "w", file, "s", {.block_rows = 4, .block_columns = 5});
  expect_box(tensor, all.values, {0, 21, 0, 11});
  expect_box(tensor, all.values, {6, 15, 4, 6});
}

TEST_F(Float8Boxes, OtherFormatsAndScalesInBf16) {
  const std::vector<std::uint8_t> codes{0x3c, 0xc1, 0x00, 0x7b};
  const std::vector<BFloat16> scales{to_bf16(0.5f), to_bf16(3)};
  write_raw_safetensors(folder_ / "f",
                        {{"w", "F8_E5M2", {2, 2}, bytes_of(codes)}, {"s", "BF16", {1, 2}, bytes_of(scales)}});
  const SafetensorsFile file(folder_ / "f");
  const ScaledFloat8 tensor(file, "w", file, "s", {.block_rows = 2, .block_columns = 1});
  expect_box(tensor, {0.5f, -7.5f, 0, 57344.0f * 3}, {0, 2, 0, 2});
}

// A small llama, one of whose weights is FP8.
class Float8Folder : public testing::Test {
 protected:
  Float8Folder() {
    config_ = Json::parse(R"({"model_type": "llama", "hidden_size": 8, "intermediate_size": 6, "num_hidden_layers": 1,
      "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 5, "max_position_embeddings": 16,
      "tie_word_embeddings": true, "torch_dtype": "bfloat16", "quantization_config": {"quant_method": "fp8",
      "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [4, 3]}})");
    for (const ModelTensor& tensor : list_tensors(shape_of(config_))) {
      const std::vector<std::int64_t> dims(tensor.shape.dim.begin(), tensor.shape.dim.begin() + tensor.shape.rank);
      const auto elements = static_cast<std::size_t>(count(tensor.shape));
      tensors_[tensor.name] = {tensor.name, "F32", dims, bytes_of(std::vector<float>(elements, 0.5f))};
    }
    tensors_[up] = {up, "F8_E4M3", {6, 8}, bytes_of(matrix_.codes)};
    tensors_[up_scale] = {up_scale, "F32", {2, 3}, bytes_of(matrix_.scales)};
  }
  static ModelShape shape_of(const Json& config) {
    RunConfig run;
    run.model = parse_hf_config(config.dump(), "config.json");
    run.train.seq_length = run.model.max_position_embeddings;
    return resolve(run, Purpose::inspect).model;
  }
  HfFolder open() const {
    folder_.write("config.json", config_.dump());
    std::vector<RawTensor> all;
    for (const auto& [name, tensor] : tensors_) all.push_back(tensor);
    write_raw_safetensors(folder_ / "model.safetensors", all);
    return HfFolder(folder_.path());
  }
  static std::vector<float> read(const WeightSource& source, const std::string& name) {
    const WeightBox box = full_box(source.tensors().at(name).shape);
    std::vector<float> out(static_cast<std::size_t>(box.elements()));
    source.read(name, box, std::as_writable_bytes(std::span(out)));
    return out;
  }
  std::string refusal() const {
    return message_of<UserError>([&] {
      const HfFolder folder = open();
      check_tensors(folder, shape_of(config_));
      read(folder, up);
    });
  }

  const std::string up = "model.layers.0.mlp.up_proj.weight", up_scale = up + "_scale_inv";
  const Float8Matrix matrix_ = make_float8(6, 8, 4, 3, 3);
  Json config_;
  std::map<std::string, RawTensor> tensors_;
  TempFolder folder_;
};

TEST_F(Float8Folder, IsAModelOfFloats) {
  const HfFolder folder = open();
  EXPECT_NO_THROW(check_tensors(folder, shape_of(config_)));
  EXPECT_FALSE(folder.tensors().contains(up_scale));
  EXPECT_EQ(folder.tensors().at(up).dtype, DType::f32);
  EXPECT_TRUE(folder.is_scaled(up));
  EXPECT_EQ(read(folder, up), matrix_.values);
  EXPECT_EQ(describe_hf_folder(folder_.path())["dtype"], "f32, fp8");
}

TEST_F(Float8Folder, IsExportedAsPlainFloats) {
  const HfFolder folder = open();
  export_hf(folder, shape_of(config_), folder_ / "out", {.dtype = DType::bf16, .carried = HfFiles(folder_.path())});
  const Json config = Json::parse(slurp(folder_ / "out/config.json"));
  EXPECT_FALSE(config.contains("quantization_config"));
  EXPECT_EQ(config["torch_dtype"], "bfloat16");
  const SafetensorsFile out(folder_ / "out/model.safetensors");
  EXPECT_FALSE(out.contains(up_scale));
  EXPECT_EQ(out.get(up).dtype, DType::bf16);
  const std::vector<float> got = out.read_floats(up);
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], to_float(to_bf16(matrix_.values[i])));
}

TEST_F(Float8Folder, ScalesThatAreMissingOrWrongAreNamed) {
  const RawTensor good = tensors_[up_scale];
  tensors_.erase(up_scale);
  EXPECT_TRUE(contains(refusal(), "'" + up + "' is FP8, and its scales, '" + up_scale + "', are missing")) << refusal();
  tensors_[up_scale] = {up_scale, "F32", {3, 2}, good.bytes};
  EXPECT_TRUE(contains(refusal(), "'" + up_scale + "' is [3,2], not [2,3]: '" + up + "' is [6,8], in blocks of 4x3"))
      << refusal();
  tensors_[up_scale] = {up_scale, "I32", {2, 3}, good.bytes};
  EXPECT_TRUE(contains(refusal(), "'" + up_scale + "' holds i32, not floats")) << refusal();
  std::vector<float> scales = matrix_.scales;
  scales[4] = std::numeric_limits<float>::infinity();
  tensors_[up_scale] = {up_scale, "F32", {2, 3}, bytes_of(scales)};
  EXPECT_TRUE(contains(refusal(), "'" + up_scale + "' has a scale that is not finite")) << refusal();
  tensors_[up_scale] = good;
  const std::string norm = "model.norm.weight_scale_inv";
  tensors_[norm] = {norm, "F32", {1}, bytes_of(std::vector<float>{1})};
  EXPECT_TRUE(contains(refusal(), "not of this model: '" + norm + "'")) << refusal();
}

// Weights and scales may lie in different files: the message names the one that is wrong.
TEST_F(Float8Folder, TheFileOfTheScaleIsNamed) {
  std::vector<float> scales = matrix_.scales;
  scales[4] = std::numeric_limits<float>::infinity();
  write_raw_safetensors(folder_ / "codes", {{"w", "F8_E4M3", {6, 8}, bytes_of(matrix_.codes)}});
  write_raw_safetensors(folder_ / "scales", {{"s", "F32", {2, 3}, bytes_of(scales)}});
  const SafetensorsFile codes_file(folder_ / "codes"), scales_file(folder_ / "scales");
  const ScaledFloat8 tensor(codes_file, "w", scales_file, "s", {.block_rows = 4, .block_columns = 3});
  std::vector<float> out(6 * 8);
  const std::string message = message_of<UserError>([&] {
    tensor.read({0, 6, 0, 8}, std::as_writable_bytes(std::span(out)));
  });
  EXPECT_TRUE(contains(message, (folder_ / "scales").string() + ": 's' has a scale that is not finite")) << message;
}

// Copies of the embedding table are compared, which is impossible in FP8: the message gives that reason, not the dtype.
TEST_F(Float8Folder, AnEmbeddingTableThatIsThereTwiceIsNotComparedInFp8) {
  const std::string head = "lm_head.weight", table = "model.embed_tokens.weight";
  const Float8Matrix words = make_float8(5, 8, 4, 3, 7);
  for (const std::string& name : {head, table}) {
    tensors_[name] = {name, "F8_E4M3", {5, 8}, bytes_of(words.codes)};
    tensors_[name + "_scale_inv"] = {name + "_scale_inv", "F32", {2, 3}, bytes_of(words.scales)};
  }
  EXPECT_TRUE(contains(refusal(), "'" + head + "' is FP8, and there twice: copies of the table of words are compared"))
      << refusal();
  tensors_.erase(head);
  tensors_.erase(head + "_scale_inv");
  EXPECT_EQ(read(open(), table), words.values);
}

TEST_F(Float8Folder, CodesThatAreNoNumbersAreRefused) {
  for (const std::uint8_t code : {std::uint8_t{0x7f}, std::uint8_t{0xff}}) {
    std::vector<std::uint8_t> codes = matrix_.codes;
    codes[5 * 8 + 7] = code;
    tensors_[up].bytes = bytes_of(codes);
    EXPECT_TRUE(contains(refusal(), "'" + up + "' has a value that is not finite in row 5, columns 6 to 8"))
        << refusal();
  }
}

TEST_F(Float8Folder, OnlyMatricesHaveBlocks) {
  const std::string norm = "model.norm.weight", scale = norm + "_scale_inv";
  tensors_[norm] = {norm, "F8_E4M3", {8}, std::string(8, '\x38')};
  tensors_[scale] = {scale, "F32", {3}, bytes_of(std::vector<float>(3, 1))};
  EXPECT_TRUE(contains(refusal(), "'" + norm + "' is an FP8 tensor of shape [8]")) << refusal();
}

TEST_F(Float8Folder, ConfigSaysHowOrItIsRefused) {
  const Json good = config_["quantization_config"];
  config_.erase("quantization_config");
  EXPECT_TRUE(contains(refusal(), "'" + up + "' is FP8, and config.json has no quantization_config")) << refusal();
  for (const char* method : {"gptq", "awq", "mxfp4", "bitsandbytes", "compressed-tensors"}) {
    config_["quantization_config"] = {{"quant_method", method}, {"bits", 4}};
    EXPECT_TRUE(contains(refusal(), std::string("quantization_config.quant_method is \"") + method +
                                        "\", which is not supported; fp8 with a weight_block_size is"))
        << refusal();
  }
  const auto with = [&](const char* key, const Json& value) {
    config_["quantization_config"] = good;
    config_["quantization_config"][key] = value;
    return refusal();
  };
  EXPECT_TRUE(contains(with("quant_method", nullptr), "quantization_config.quant_method is absent"));
  EXPECT_TRUE(contains(with("fmt", "e3m4"), "quantization_config.fmt is \"e3m4\""));
  for (const Json& bad : {Json(nullptr), Json({128}), Json({0, 128}), Json({128, -1}), Json({1, 1, 1})})
    EXPECT_TRUE(contains(with("weight_block_size", bad), "quantization_config.weight_block_size is")) << bad;
  config_["quantization_config"] = 3;
  EXPECT_TRUE(contains(refusal(), "quantization_config is 3, and should be an object"));
}

// transformers 5 keeps all experts of a layer in one tensor, and their scales in another.
TEST_F(Float8Folder, ExpertsInOneTensorAreListedOneByOne) {
  const std::int64_t experts = 2, ffn = 5, hidden = 8;
  config_.merge_patch(Json::parse(R"({"model_type": "qwen3_moe", "num_local_experts": 2, "moe_intermediate_size": 5,
    "num_experts_per_tok": 2, "norm_topk_prob": true})"));
  const std::string gate_up = "model.layers.0.mlp.experts.gate_up_proj", scale = gate_up + "_scale_inv";
  const Float8Matrix first = make_float8(2 * ffn, hidden, 4, 3, 5), second = make_float8(2 * ffn, hidden, 4, 3, 6);
  std::vector<std::uint8_t> codes = first.codes;
  codes.insert(codes.end(), second.codes.begin(), second.codes.end());
  std::vector<float> scales = first.scales;
  scales.insert(scales.end(), second.scales.begin(), second.scales.end());
  tensors_ = {{gate_up, {gate_up, "F8_E4M3", {experts, 2 * ffn, hidden}, bytes_of(codes)}},
              {scale, {scale, "F32", {experts, 3, 3}, bytes_of(scales)}}};
  const HfFolder folder = open();
  EXPECT_EQ(folder.tensors().size(), 4u);
  const auto middle = second.values.begin() + ffn * hidden;
  const std::string prefix = "model.layers.0.mlp.experts.1.";
  EXPECT_EQ(read(folder, prefix + "gate_proj.weight"), std::vector<float>(second.values.begin(), middle));
  EXPECT_EQ(read(folder, prefix + "up_proj.weight"), std::vector<float>(middle, second.values.end()));
}

}  // namespace
}  // namespace tera::test
