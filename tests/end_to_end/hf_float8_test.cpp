// The program on a folder of FP8 weights: in every layout it is the model of the plain folder that has the same values.

#include <gtest/gtest.h>

#include "tera/hf/hf_folder.h"
#include "tests/end_to_end/program.h"
#include "tests/support/float8_file.h"
#include "tests/support/paths.h"
#include "tests/support/temp_folder.h"

namespace tera::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// What DeepSeek leaves in bf16.
bool stays(const std::string& name) {
  for (const char* part : {"norm", "embed", "lm_head", "shared_head.head", "mlp.gate."})
    if (name.find(part) != std::string::npos) return true;
  return false;
}

// Blocks of 5x3: no rank's shard begins or ends with a block.
class HfFloat8 : public testing::Test {
 protected:
  HfFloat8() { write_folders(fs::path(source_path("tests/golden/hf")) / "latents_bias"); }

  // "fp8" has the tensors of the source, with values that FP8 can say; "plain" the same values in F32.
  void write_folders(const fs::path& source) {
    const SafetensorsFile file(source / "model.safetensors");
    std::vector<RawTensor> scaled, plain;
    std::uint32_t seed = 0;
    for (const SafetensorsEntry& entry : file.entries()) {
      const auto bytes = file.get(entry.name).bytes;
      const RawTensor same{entry.name, entry.dtype_name, entry.shape,
                           std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())};
      if (stays(entry.name)) {
        scaled.push_back(same);
        plain.push_back(same);
        continue;
      }
      const std::int64_t rows = entry.shape[0], columns = entry.shape[1];
      const Float8Matrix matrix = make_float8(rows, columns, 5, 3, ++seed, 0x1p-9f);
      scaled.push_back({entry.name, "F8_E4M3", entry.shape, bytes_of(matrix.codes)});
      scaled.push_back(
          {entry.name + "_scale_inv", "F32", {(rows + 4) / 5, (columns + 2) / 3}, bytes_of(matrix.scales)});
      plain.push_back({entry.name, "F32", entry.shape, bytes_of(matrix.values)});
    }
    Json config = Json::parse(slurp(source / "config.json"));
    folder_.write("plain/config.json", config.dump());
    write_raw_safetensors(folder_ / "plain/model.safetensors", plain);
    config["quantization_config"] = {{"quant_method", "fp8"}, {"fmt", "e4m3"}, {"weight_block_size", {5, 3}}};
    folder_.write("fp8/config.json", config.dump());
    write_raw_safetensors(folder_ / "fp8/model.safetensors", scaled);
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  static std::string done(const std::string& arguments) {
    const Outcome outcome = run_program(arguments);
    EXPECT_EQ(outcome.status, 0) << arguments << "\n" << outcome.output;
    return outcome.output;
  }
  std::vector<float> logits(const std::string& model, const std::string& layout) const {
    done("logits --model " + path(model) + " --tokens '1,2,3,4,5;6,7,8,9,10' --device cpu --threads 1 --output " +
         path("logits") + " " + layout);
    return SafetensorsFile(path("logits")).read_floats("logits");
  }
  void expect_plain(const std::string& name) const {
    const HfFolder want(path("plain")), got(path(name));
    ASSERT_EQ(got.tensors().size(), want.tensors().size());
    for (const auto& [tensor, entry] : want.tensors()) {
      const WeightBox box = full_box(entry.shape);
      const auto read = [&, &tensor = tensor](const HfFolder& folder) {
        const DType dtype = folder.tensors().at(tensor).dtype;
        std::vector<std::byte> raw(static_cast<std::size_t>(box.elements()) * size_of(dtype));
        std::vector<float> values(static_cast<std::size_t>(box.elements()));
        folder.read(tensor, box, raw);
        to_floats(dtype, raw, values);
        for (float& value : values) value = std::abs(value) < 1e-30f ? 0 : value;  // training moves even a zero
        return values;
      };
      EXPECT_EQ(read(got), read(want)) << tensor;
    }
    EXPECT_FALSE(Json::parse(slurp(folder_ / (name + "/config.json"))).contains("quantization_config"));
  }

  TempFolder folder_;
};

TEST_F(HfFloat8, LogitsAreThoseOfThePlainFolder) {
  const std::string tp2 = " dist.tensor_model_parallel_size=2", pp2 = " dist.pipeline_model_parallel_size=2";
  for (const std::string& layout : {std::string(), "--ranks 2" + tp2, "--ranks 4" + tp2 + pp2})
    EXPECT_EQ(logits("fp8", layout), logits("plain", layout)) << layout;
}

TEST_F(HfFloat8, ImportAndExportGivePlainWeights) {
  const std::string said = done("import --model " + path("fp8") + " --output " + path("ck"));
  EXPECT_NE(said.find("of the tensors are FP8 and became F32"), std::string::npos) << said;
  done("export --model " + path("ck") + " --output " + path("out"));
  expect_plain("out");
  done("export --model " + path("fp8") + " --output " + path("straight") + " --dtype fp32");
  expect_plain("straight");
}

// The published form of DeepSeek-V3: FP8, and an MTP layer after the last.
TEST_F(HfFloat8, MtpLayersComeAlong) {
  done("train " + source_path("configs/tests/sweep_mtp.yaml") +
       " model.mtp_num_layers=1 train.train_iters=1 train.eval_iters=0 run.dir=" + path("run") +
       " checkpoint.save=" + path("trained"));
  done("export --model " + path("trained") + " --output " + path("source"));
  write_folders(folder_ / "source");
  done("import --model " + path("fp8") + " --output " + path("ck"));
  done("export --model " + path("ck") + " --output " + path("out"));
  expect_plain("out");
  EXPECT_EQ(logits("fp8", ""), logits("plain", ""));
}

// The learning rate is so small that nothing changes: in every layout the exported tensors are the imported ones.
TEST_F(HfFloat8, TrainingStartsFromItInAnyLayout) {
  folder_.write("run.yaml", R"(
train: {train_iters: 1, micro_batch_size: 1, global_batch_size: 4, seq_length: 8, eval_iters: 0}
optimizer: {lr: 1e-37}
dataset: {kind: mock}
dist: {device: cpu, threads: 1}
mixed_precision: {precision: bf16}
model: {moe: {router_bias_update_rate: 0}}
)");
  const std::string tp2 = " dist.tensor_model_parallel_size=2", ep2 = " dist.expert_model_parallel_size=2";
  const std::vector<std::string> layouts{
      "--ranks 2" + tp2, "--ranks 2" + ep2,
      "--ranks 2" + tp2 + ep2 + " dist.expert_tensor_parallel_size=1 dist.sequence_parallel=true",
      "--ranks 4" + ep2 + " dist.expert_tensor_parallel_size=2 ddp.data_parallel_sharding_strategy=optim_grads_params",
      "--ranks 2 dist.pipeline_model_parallel_size=2 ddp.data_parallel_sharding_strategy=optim"};
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const std::string n = std::to_string(i);
    done("train " + path("run.yaml") + " " + layouts[i] + " model.hf=" + path("fp8") + " run.dir=" + path("run" + n) +
         " checkpoint.save=" + path("saved" + n));
    done("export --model " + path("saved" + n) + " --output " + path("out" + n) + " --dtype fp32");
    expect_plain("out" + n);
  }
}

}  // namespace
}  // namespace tera::test
