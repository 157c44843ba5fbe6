// The program on Hugging Face folders: logits in every layout, training from a folder, and back again.

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "tera/checkpoint/safetensors_header.h"
#include "tera/hf/hf_folder.h"
#include "tests/end_to_end/letters_tokenizer.h"
#include "tests/end_to_end/program.h"
#include "tests/support/close.h"
#include "tests/support/paths.h"
#include "tests/support/temp_folder.h"

namespace tera::test {
namespace {

namespace fs = std::filesystem;

class HfProgram : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  static std::string golden(const std::string& name) { return source_path("tests/golden/hf/") + name; }

  void expect_done(const std::string& arguments) const {
    const Outcome outcome = run_program(arguments);
    ASSERT_EQ(outcome.status, 0) << arguments << "\n" << outcome.output;
  }
  std::vector<float> logits(const std::string& model, const std::string& layout) const {
    const fs::path file = folder_ / "logits.safetensors";
    expect_done("logits --model " + model + " --tokens '1,2,3,4,5;6,7,8,9,10' --device cpu --threads 1 --output " +
                file.string() + " " + layout);
    const SafetensorsFile out(file);
    EXPECT_EQ(out.get("logits").shape, shape(2, 5, 29));
    return out.read_floats("logits");
  }
  // Every tensor of two folders, bit for bit.
  static void expect_equal_weights(const fs::path& one, const fs::path& other) {
    const HfFolder a(one), b(other);
    ASSERT_EQ(a.tensors().size(), b.tensors().size());
    for (const auto& [name, entry] : a.tensors()) {
      ASSERT_TRUE(b.tensors().contains(name)) << name;
      ASSERT_EQ(b.tensors().at(name).shape, entry.shape) << name << ": no padding of the vocabulary, for one";
      const WeightBox box = full_box(entry.shape);
      const auto read = [&](const HfFolder& folder) {
        const DType dtype = folder.tensors().at(name).dtype;
        std::vector<std::byte> raw(static_cast<std::size_t>(box.elements()) * size_of(dtype));
        std::vector<float> values(static_cast<std::size_t>(box.elements()));
        folder.read(name, box, raw);
        to_floats(dtype, raw, values);
        return values;
      };
      EXPECT_EQ(read(a), read(b)) << name;
    }
  }

  TempFolder folder_;
};

TEST_F(HfProgram, LogitsAreTheSameInEveryLayout) {
  const std::string tp2 = "dist.tensor_model_parallel_size=2 ", pp2 = "dist.pipeline_model_parallel_size=2 ";
  for (const char* name :
       {"gqa_grouping", "gpt2_square", "qwen2_unused_window", "biases", "mixtral_fused", "qwen3_moe_experts"}) {
    const std::vector<float> one = logits(golden(name), "");
    for (const std::string& layout : {"--ranks 2 " + tp2, "--ranks 2 " + pp2, "--ranks 4 " + tp2 + pp2,
                                      std::string("--ranks 4 dist.tensor_model_parallel_size=4")}) {
      if (std::string(name) == "gqa_grouping" && layout.find("size=4") != std::string::npos) continue;  // 6 heads
      EXPECT_LT(relative_difference(logits(golden(name), layout), one), 1e-5) << name << " " << layout;
    }
  }
}

// A DeepSeek-V3 with an MTP layer: it is written under the published names, with copies of the tables, read again
// whatever config.json says of it, and left out by every command that does not train it.
TEST_F(HfProgram, MtpLayersComeAndGo) {
  const std::string config = source_path("configs/tests/sweep_mtp.yaml"), run = " run.dir=" + path("run");
  const std::string few = " model.mtp_num_layers=1 train.train_iters=2 train.eval_iters=0";
  expect_done("train " + config + few + run + " checkpoint.save=" + path("ck"));
  expect_done("export --model " + path("ck") + " --output " + path("hf"));
  const SafetensorsFile exported(folder_ / "hf/model.safetensors");
  std::set<std::string> extra;
  for (const SafetensorsEntry& entry : exported.entries())
    if (entry.name.starts_with("model.layers.4.")) extra.insert(entry.name.substr(15));
  for (const char* name : {"enorm.weight",
                           "hnorm.weight",
                           "eh_proj.weight",
                           "shared_head.norm.weight",
                           "shared_head.head.weight",
                           "embed_tokens.weight",
                           "input_layernorm.weight",
                           "post_attention_layernorm.weight",
                           "self_attn.q_a_proj.weight",
                           "self_attn.q_a_layernorm.weight",
                           "self_attn.q_b_proj.weight",
                           "self_attn.kv_a_proj_with_mqa.weight",
                           "self_attn.kv_a_layernorm.weight",
                           "self_attn.kv_b_proj.weight",
                           "self_attn.o_proj.weight",
                           "mlp.gate.weight",
                           "mlp.gate.e_score_correction_bias",
                           "mlp.shared_experts.gate_proj.weight",
                           "mlp.shared_experts.up_proj.weight",
                           "mlp.shared_experts.down_proj.weight"})
    EXPECT_EQ(extra.erase(name), 1u) << name;
  EXPECT_EQ(extra.size(), 3u * 8u) << "and the experts";
  EXPECT_EQ(exported.get("model.layers.4.eh_proj.weight").shape, shape(32, 64));
  EXPECT_EQ(exported.read_floats("model.layers.4.embed_tokens.weight"),
            exported.read_floats("model.embed_tokens.weight"));
  EXPECT_EQ(exported.read_floats("model.layers.4.shared_head.head.weight"), exported.read_floats("lm_head.weight"));
  nlohmann::json written = nlohmann::json::parse(slurp(folder_ / "hf/config.json"));
  EXPECT_EQ(written["num_nextn_predict_layers"], 1);
  EXPECT_EQ(written["num_hidden_layers"], 4);

  written["num_nextn_predict_layers"] = 0;
  folder_.write("hf/config.json", written.dump());
  expect_done("import --model " + path("hf") + " --output " + path("ck2"));
  expect_done("export --model " + path("ck2") + " --output " + path("hf2"));
  EXPECT_EQ(slurp(folder_ / "hf2/model.safetensors"), slurp(folder_ / "hf/model.safetensors"));
  EXPECT_EQ(nlohmann::json::parse(slurp(folder_ / "hf2/config.json"))["num_nextn_predict_layers"], 1);
  expect_equal_weights(folder_ / "hf", folder_ / "hf2");

  // In training the MTP layers are loaded, left out or initialised; each case is reported.
  folder_.write("hf.yaml", R"(
model: {moe: {router_bias_update_rate: 0}}
train: {train_iters: 1, micro_batch_size: 1, global_batch_size: 2, seq_length: 8, eval_iters: 0}
optimizer: {lr: 1e-37}
dataset: {kind: mock}
dist: {device: cpu, threads: 1}
)");
  const auto from_folder = [&](const std::string& words) {
    const Outcome outcome = run_program("train " + path("hf.yaml") + run + " model.hf=" + path("hf") + " " + words);
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    return outcome.output;
  };
  const std::string without = from_folder("");
  EXPECT_NE(without.find("the weights have 1, and the run takes 0; model.mtp_num_layers=1 takes all"),
            std::string::npos)
      << without;
  const std::string taken = from_folder("model.mtp_num_layers=1 checkpoint.save=" + path("ck3") +
                                        " --ranks 2 dist.pipeline_model_parallel_size=2");
  EXPECT_EQ(taken.find("further ahead"), std::string::npos) << taken;
  expect_done("export --model " + path("ck3") + " --output " + path("hf3"));
  expect_equal_weights(folder_ / "hf", folder_ / "hf3");
  const std::string anew = from_folder("model.mtp_num_layers=2");
  EXPECT_NE(anew.find("of these layers the weights have 1; the rest begins anew"), std::string::npos) << anew;

  const auto logits_of = [&](const std::string& model) {
    const fs::path file = folder_ / "ahead.safetensors";
    expect_done("logits --model " + model + " --tokens 1,2,3,4,5 --device cpu --threads 1 --output " + file.string());
    return SafetensorsFile(file).read_floats("logits");
  };
  EXPECT_EQ(logits_of(path("ck")), logits_of(path("hf")));
}

// A folder of a DeepSeek-V3 has a bias for each expert in any case; zeros choose as none do.
TEST_F(HfProgram, ADeepSeekWithoutBiasesOfExpertsHasZerosInItsFolder) {
  const std::string config = source_path("configs/tests/sweep_mtp.yaml"), name = "mlp.gate.e_score_correction_bias";
  expect_done("train " + config + " model.moe.router_enable_expert_bias=false model.mtp_num_layers=1 " +
              "train.train_iters=3 train.eval_iters=0 optimizer.lr=1e-2 run.dir=" + path("run") +
              " checkpoint.save=" + path("ck"));
  const Outcome exported = run_program("export --dtype bf16 --model " + path("ck") + " --output " + path("half"));
  EXPECT_EQ(exported.status, 0) << exported.output;
  EXPECT_NE(exported.output.find("router_enable_expert_bias=false: a folder of a deepseek_v3 has biases of experts; "
                                 "they are zeros\n"),
            std::string::npos)
      << exported.output;
  expect_done("export --model " + path("ck") + " --output " + path("hf"));
  for (const char* folder : {"hf", "half"}) {
    const SafetensorsFile file(folder_ / folder / "model.safetensors");
    for (const char* layer : {"1", "2", "3", "4"}) {  // the first is dense, the last is an MTP layer
      const std::string bias = std::string("model.layers.") + layer + "." + name;
      EXPECT_EQ(file.get(bias).dtype, DType::f32);
      EXPECT_EQ(file.read_floats(bias), std::vector<float>(8)) << bias;
    }
  }
  expect_done("import --model " + path("hf") + " --output " + path("again"));
  const auto logits_of = [&](const std::string& model) {
    const fs::path file = folder_ / "out.safetensors";
    expect_done("logits --model " + model + " --tokens 1,2,3,4,5,6,7,8 --device cpu --threads 1 --output " +
                file.string());
    return SafetensorsFile(file).read_floats("logits");
  };
  const std::vector<float> before = logits_of(path("ck"));
  EXPECT_GT(*std::ranges::max_element(before), *std::ranges::min_element(before));
  EXPECT_EQ(logits_of(path("hf")), before);
  EXPECT_EQ(logits_of(path("again")), before);
  expect_done("export --model " + path("again") + " --output " + path("hf2"));
  expect_equal_weights(folder_ / "hf", folder_ / "hf2");
}

// What an export would refuse is reported before weeks of training.
TEST_F(HfProgram, AModelWithoutAFolderIsReportedAtTheStart) {
  const std::string configs = source_path("configs/tests/"), words = "this model has no Hugging Face form";
  const auto reported = [&](const std::string& command) {
    const Outcome outcome = run_program(command);
    EXPECT_EQ(outcome.status, 0) << command << "\n" << outcome.output;
    const std::size_t at = outcome.output.find(words);
    return at == std::string::npos ? std::string() : outcome.output.substr(at, outcome.output.find('\n', at) - at);
  };
  for (const char* model : {"tiny", "tiny_gpt", "tiny_qwen3_moe", "tiny_mixtral", "sweep_mtp", "tiny_deepseek_v2"})
    EXPECT_EQ(reported("plan " + configs + model + ".yaml"), "") << model;
  EXPECT_EQ(reported("plan " + configs + "sweep_mtp.yaml model.moe.router_enable_expert_bias=false"), "") << "zeros";
  const std::string cases[][3] = {
      {"tiny_qwen3_moe", "model.moe.shared_expert_intermediate_size=32",
       ": config.json of a qwen3_moe cannot say that, it would mean 0"},
      {"tiny_qwen3_moe", "model.moe.router_score_function=sigmoid",
       ": config.json of a qwen3_moe cannot say that, it would mean softmax"},
      {"tiny_qwen3_moe", "model.moe.router_topk_scaling_factor=2",
       ": config.json of a qwen3_moe cannot say that, it would mean 1"},
      {"tiny_mixtral", "model.moe.first_k_dense=1", ": config.json of a mixtral cannot say that"}};
  for (const auto& [model, key, why] : cases)
    EXPECT_EQ(reported("plan " + configs + model + ".yaml " + key), words + ": " + key + why);
  EXPECT_EQ(reported("plan " + configs + "tiny_mla.yaml"),
            words + ": model.multi_latent_attention=true: config.json of a llama cannot say that");
  const auto& [model, key, why] = cases[3];
  const std::string run = configs + model + ".yaml train.train_iters=3 train.eval_iters=0 run.dir=" + path("run") + " ";
  EXPECT_EQ(reported("train " + run + "checkpoint.save=" + path("ck") + " " + key), words + ": " + key + why);
  EXPECT_EQ(reported("train " + run), "");
  const Outcome refused = run_program("export --model " + path("ck") + " --output " + path("hf"));
  EXPECT_EQ(refused.status, 2);
  EXPECT_NE(refused.output.find(key + why), std::string::npos) << refused.output;
}

// The learning rate is so small that nothing changes: in every layout the exported tensors are the imported ones.
TEST_F(HfProgram, TrainingStartsFromAFolderInAnyLayoutAndGivesItBack) {
  const std::string config = folder_
                                 .write("run.yaml", R"(
train: {train_iters: 2, micro_batch_size: 1, global_batch_size: 4, seq_length: 8, eval_iters: 0}
optimizer: {lr: 1e-37}
dataset: {kind: mock}
dist: {device: cpu, threads: 1}
mixed_precision: {precision: fp32}
)")
                                 .string();
  const std::vector<std::string> layouts{
      "", "--ranks 2 dist.tensor_model_parallel_size=2", "--ranks 2 dist.pipeline_model_parallel_size=2",
      "--ranks 2 ddp.data_parallel_sharding_strategy=optim",
      "--ranks 4 dist.tensor_model_parallel_size=2 ddp.data_parallel_sharding_strategy=optim_grads_params"};
  for (const char* name : {"biases", "gpt2_published", "qwen3_moe_fused"}) {
    for (std::size_t i = 0; i < layouts.size(); ++i) {
      const fs::path saved = folder_ / (name + std::to_string(i)), out = folder_ / (name + std::to_string(i) + "-out");
      expect_done("train " + config + " " + layouts[i] + " model.hf=" + golden(name) +
                  " run.dir=" + (folder_ / "run").string() + " checkpoint.save=" + saved.string());
      expect_done("export --model " + saved.string() + " --output " + out.string());
      expect_equal_weights(golden(name), out);
    }
  }
}

// The config keeps all its keys; what transformers 4 needs is added to the keys of 5.
TEST_F(HfProgram, ImportAndExportKeepWeightsToTheBitAndConfig) {
  for (const char* name : {"old_llama2", "sharded", "gpt2_square", "qwen2_layer_types", "rope_yarn_mscale",
                           "mixtral_experts", "mixtral_fused", "qwen3_moe_experts", "qwen3_moe_fused"}) {
    const fs::path saved = folder_ / (std::string(name) + "-saved"), out = folder_ / (std::string(name) + "-out");
    expect_done("import --model " + golden(name) + " --output " + saved.string());
    expect_done("export --model " + saved.string() + " --output " + out.string());
    expect_equal_weights(golden(name), out);
    auto config = nlohmann::ordered_json::parse(slurp(out / "config.json"));
    const auto before = nlohmann::ordered_json::parse(slurp(golden(name) + "/config.json"));
    for (const char* older : {"rope_theta", "rope_scaling", "torch_dtype"}) {
      EXPECT_TRUE(config.contains(older) || before["model_type"] == "gpt2") << name;
      if (!before.contains(older)) config.erase(older);
    }
    EXPECT_EQ(config.contains("num_experts"), before["model_type"] == "qwen3_moe") << name;
    if (!before.contains("num_experts")) config.erase("num_experts");
    EXPECT_EQ(config.dump(), before.dump()) << name;
    EXPECT_EQ(logits(saved.string(), ""), logits(golden(name), "")) << name;
  }
}

TEST_F(HfProgram, GeneratesWithTheFoldersTokenizerAndStopsAtItsEndTokens) {
  const std::string model = (folder_ / "model").string();
  fs::copy(golden("gate_up_order"), model);
  folder_.write("model/tokenizer.json", letters_tokenizer());
  const fs::path file = folder_ / "logits.safetensors";
  expect_done("logits --model " + model + " --tokens 0,2,3 --device cpu --output " + file.string());
  const std::vector<float> logits = SafetensorsFile(file).read_floats("logits");
  const auto last = logits.end() - 29;
  const auto next = std::max_element(last, logits.end()) - last;
  ASSERT_GT(next, 1) << "a letter";
  const std::string letter(1, next == 28 ? ' ' : static_cast<char>('a' + next - 2));
  const std::string generate = "generate --model " + model + " --prompt ab --device cpu --threads 1 --max-new-tokens ";
  EXPECT_EQ(run_program(generate + "1").output, "<s>ab" + letter + "\n");
  const std::string text = run_program(generate + "8").output;
  EXPECT_EQ(text.size(), std::string("<s>ab\n").size() + 8) << text;
  EXPECT_EQ(run_program(generate + "8 --ranks 2 dist.tensor_model_parallel_size=2").output, text);
  folder_.write("model/generation_config.json", "{\"eos_token_id\": [1, " + std::to_string(next) + "]}");
  EXPECT_EQ(run_program(generate + "8").output, "<s>ab\n");

  // The files go with the model, through a checkpoint and out again.
  const std::string saved = (folder_ / "saved").string(), out = (folder_ / "out").string();
  expect_done("import --model " + model + " --output " + saved);
  fs::rename(model, folder_ / "moved");
  EXPECT_EQ(run_program("generate --model " + saved + " --prompt ab --device cpu").output, "<s>ab\n");
  expect_done("export --model " + saved + " --output " + out);
  for (const char* name : {"tokenizer.json", "generation_config.json", "config.json"})
    EXPECT_EQ(slurp(fs::path(out) / name) == slurp((folder_ / "moved") / name), std::string(name) != "config.json")
        << name << " (the config got the keys of transformers 4)";
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which need memory of their own
// The peak memory of these commands; 0 if one failed. A separate process starts them, so that earlier tests do not
// count.
long max_kilobytes(const std::vector<std::string>& commands) {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe(ends.data()), 0);
  const pid_t starter = ::fork();
  if (starter == 0) {
    struct rusage usage {};
    const bool done = std::ranges::all_of(commands, [](const auto& each) { return run_program(each).status == 0; });
    if (!done || ::getrusage(RUSAGE_CHILDREN, &usage) != 0) usage.ru_maxrss = 0;
    ::_exit(::write(ends[1], &usage.ru_maxrss, sizeof(long)) == sizeof(long) ? 0 : 1);
  }
  long peak = 0;
  ::close(ends[1]);
  EXPECT_EQ(::read(ends[0], &peak, sizeof(peak)), static_cast<ssize_t>(sizeof(peak)));
  ::close(ends[0]);
  EXPECT_EQ(::waitpid(starter, nullptr, 0), starter);
  return peak;
}

// An embedding table of 256 MB, none of which is on the disk or in this program's memory: tera holds a few megabytes of
// it at a time.
TEST_F(HfProgram, ImportAndExportNeedLittleMemory) {
  folder_.write("large/config.json", R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 64,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 1000000,
    "max_position_embeddings": 16, "tie_word_embeddings": true, "rms_norm_eps": 1e-6})");
  SafetensorsHeader header;
  std::uint64_t end = 0;
  const auto add = [&](const std::string& name, const std::vector<std::int64_t>& shape) {
    const std::uint64_t begin = end;
    end += static_cast<std::uint64_t>(shape[0] * (shape.size() == 2 ? shape[1] : 1)) * sizeof(float);
    header.entries.push_back({name + ".weight", "F32", shape, begin, end});
  };
  add("model.embed_tokens", {1000000, 64});
  add("model.norm", {64});
  for (const char* name : {"input_layernorm", "post_attention_layernorm"})
    add(std::string("model.layers.0.") + name, {64});
  for (const char* name : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                           "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"})
    add(std::string("model.layers.0.") + name, {64, 64});
  const std::string text = format_safetensors_header(header);
  const std::uint64_t length = text.size();
  const fs::path weights = folder_.write("large/model.safetensors",
                                         std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text);
  fs::resize_file(weights, sizeof(length) + length + end);

  const std::string large = (folder_ / "large").string(), saved = (folder_ / "saved").string();
  const long peak =
      max_kilobytes({"import --model " + large + " --output " + saved,
                     "export --model " + saved + " --output " + (folder_ / "out").string(),
                     "export --dtype bf16 --model " + saved + " --output " + (folder_ / "half").string()});
  EXPECT_GT(fs::file_size(folder_ / "out/model.safetensors"), end);
  EXPECT_GT(fs::file_size(folder_ / "half/model.safetensors"), end / 2);
  EXPECT_GT(peak, 0) << "all were done";
  EXPECT_LT(peak, 100 << 10);
}
#endif

TEST_F(HfProgram, MistakesAreOneLine) {
  const auto refused = [&](const std::string& arguments, const std::string& part) {
    const Outcome outcome = run_program(arguments);
    EXPECT_EQ(outcome.status, 2) << outcome.output;
    EXPECT_NE(outcome.output.find(part), std::string::npos) << outcome.output;
  };
  const std::string model = " --model " + golden("biases"), out = " --output " + (folder_ / "x").string();
  refused("logits" + model + out + " --tokens '1,2;3'", "sequence 2 has 1 ids and the first 2");
  refused("logits" + model + out + " --tokens 1,29", "29 is beyond the model's vocabulary, which ends at 28");
  refused("logits" + model + out + " --tokens 1,x", "no token id");
  refused("logits" + model + out + " --tokens ''", "there are none");
  refused("logits" + model + out + " --tokens 1,2 train.seed=1", "only dist.key=value");
  refused("logits --model " + folder_.path().string() + out + " --tokens 1", "neither a checkpoint");
  refused("export --model " + golden("biases") + " --output " + golden("biases"), "nothing is overwritten");
  refused("export --model " + golden("biases") + out + " --dtype int8", "--dtype int8");
  refused("export --model " + golden("biases") + out + " --max-shard-size 0", "--max-shard-size 0");
  refused("export --model " + golden("biases") + "/config.json" + out, "it is a file");
  refused("generate" + model + " --prompt a", "has no tokenizer.json; name one");
  EXPECT_EQ(folder_.files(), 0u) << "a mistake leaves nothing behind";
}

}  // namespace
}  // namespace tera::test
