// Mistakes of users: exit status 2, a line or two that name the cause, and nothing half-written. All tests run the real
// program.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tera/backend/cuda/runtime/make_cuda.h"
#include "tera/checkpoint/manifest.h"
#include "tests/end_to_end/program.h"
#include "tests/support/paths.h"
#include "tests/support/temp_folder.h"

namespace tera::test {
namespace {

namespace fs = std::filesystem;

struct Mistake {
  std::string arguments, words;
};

class BadInput : public testing::Test {
 protected:
  std::string run_dir() const { return (folder_ / "run").string(); }

  // `tera train` on the smallest config, four steps.
  Outcome train(const std::string& arguments) const {
    return run_program(fmt::format("train \"{}/tiny.yaml\" run.dir={} train.train_iters=4 {}",
                                   source_path("configs/tests"), run_dir(), arguments));
  }

  static void expect_mistake(const Outcome& outcome, const Mistake& mistake) {
    EXPECT_EQ(outcome.status, 2) << mistake.arguments << "\n" << outcome.output;
    EXPECT_NE(outcome.output.find(mistake.words), std::string::npos) << mistake.arguments << "\n" << outcome.output;
    EXPECT_LE(std::count(outcome.output.begin(), outcome.output.end(), '\n'), 2) << outcome.output;
    EXPECT_EQ(outcome.output.substr(0, 6), "tera: ") << outcome.output;
  }

  void expect_refused(const std::vector<Mistake>& mistakes) const {
    for (const auto& mistake : mistakes) {
      expect_mistake(train(mistake.arguments), mistake);
      EXPECT_FALSE(fs::exists(run_dir())) << mistake.arguments;
    }
  }

  // A run with a given config file instead of the smallest one.
  void expect_file_refused(const std::string& yaml, const std::string& words) const {
    const auto file = folder_.write("own.yaml", yaml);
    expect_mistake(run_program(fmt::format("train {} run.dir={}", file.string(), run_dir())),
                   {yaml.substr(0, 100), words});
    EXPECT_FALSE(fs::exists(run_dir())) << yaml.substr(0, 100);
  }

  TempFolder folder_;
};

TEST_F(BadInput, Keys) {
  expect_refused({{"model.hiden_size=32", "unknown key model.hiden_size; did you mean model.hidden_size?"},
                  {"modle.hidden_size=32", "unknown key modle; did you mean model?"},
                  {"model=3", "model"},
                  {"nonsense", "nonsense"}});
  expect_file_refused("model:\n  arch: llama\n  hiden_size: 32\n", "own.yaml:3: unknown key model.hiden_size");
}

// The data of this example is made by an earlier command.
TEST_F(BadInput, TheFirstExampleWithoutItsData) {
  expect_mistake(
      run_shell("cd " + folder_.path().string() + " && \"" + std::string(paths::program) + "\" train \"" +
                source_path("configs/quickstart.yaml") + "\""),
      {"quickstart.yaml", "runs/quickstart/data/tokenizer.json: there is no such file here; `make quickstart`"});
  EXPECT_EQ(folder_.files(), 0u);
}

TEST_F(BadInput, Types) {
  expect_refused({{"model.hidden_size=wide", "model.hidden_size: 'wide' is not a whole number"},
                  {"model.hidden_size=1.5", "'1.5' is not a whole number"},
                  {"model.hidden_size=[32]", "a list is not a whole number"},
                  {"model.hidden_size=.nan", "'.nan' is not a whole number"},
                  {"model.qk_layernorm=perhaps", "model.qk_layernorm"},
                  {"model.arch=lama", "llama"},
                  {"optimizer.lr=.nan", "optimizer.lr: '.nan' is not a finite number"},
                  {"optimizer.lr=nan", "'nan' is not a finite number"},
                  {"optimizer.lr=.inf", "'.inf' is not a finite number"},
                  {"dataset.split=nan", "dataset.split"}});
}

TEST_F(BadInput, RulesBetweenKeys) {
  expect_refused({{"model.num_attention_heads=6",
                   "model.num_attention_heads=6 (command line): must divide hidden_size, which is 32"},
                  {"model.num_query_groups=3", "must divide num_attention_heads, which is 4; nearest: 2 or 4"},
                  {"train.global_batch_size=7", "must be a multiple of micro_batch_size, which is 2; nearest: 6 or 8"},
                  {"scheduler.lr_warmup_iters=9", "scheduler.lr_warmup_iters=9"},
                  {"model.max_position_embeddings=8", "train.seq_length"}});
}

TEST_F(BadInput, Sizes) {
  expect_refused({{"model.hidden_size=-4", "must be from 1 to"},
                  {"model.hidden_size=0", "model.hidden_size"},
                  {"model.hidden_size=9223372036854775807", "must be from 1 to"},
                  {"model.hidden_size=99999999999999999999999", "does not fit in 64 bits"},
                  {"train.seq_length=-1", "train.seq_length=-1"},
                  {"train.train_iters=-1", "train.train_iters=-1"},
                  {"dist.threads=-1", "dist.threads=-1"},
                  {"dist.threads=100000000", "must be from 0 to"},
                  {"train.global_batch_size=2147483646", "1073741823 microbatches"},
                  {"model.hidden_size=16777216 model.ffn_hidden_size=16777216 model.num_layers=100000",
                   "more than can be counted"}});
}

// Each size is allowed, their product is more than the machine has; the error comes before anything is allocated.
TEST_F(BadInput, MoreThanTheMachineHas) {
  for (const char* sizes :
       {"model.hidden_size=1048576 model.num_layers=1000", "train.seq_length=1000000000",
        "train.micro_batch_size=100000000 train.global_batch_size=100000000", "model.vocab_size=2147483647"}) {
    const Mistake mistake{sizes, "the plan needs "};
    expect_mistake(train(sizes), mistake);
    EXPECT_FALSE(fs::exists(run_dir())) << sizes;
  }
}

// Only the first of the ranks that share the machine reports it.
TEST_F(BadInput, MoreThanTheMachineHasForAllRanks) {
  const Outcome outcome = train("--ranks 4 train.seq_length=1000000000 dist.context_parallel_size=4");
  expect_mistake(outcome, {"--ranks 4", "the plans of the 4 ranks need "});
  EXPECT_EQ(std::count(outcome.output.begin(), outcome.output.end(), '\n'), 1) << outcome.output;
}

TEST_F(BadInput, KeysWrittenAsFlags) {
  expect_mistake(train("--context-parallel-size 2"), {"", "; write dist.context_parallel_size=VALUE"});
  expect_mistake(train("--seq-length=512"), {"", "; write train.seq_length=VALUE"});
  expect_mistake(train("--sequence-parallel"), {"", "; write dist.sequence_parallel=true "});
  expect_mistake(train("--moe-layer-freq 2"),
                 {"", "; write model.moe.layer_freq=VALUE; a pattern of layers is said by"});
  expect_mistake(
      train("--num-layers-per-virtual-pipeline-stage 2"),
      {"", "; write dist.virtual_pipeline_model_parallel_size=VALUE; it counts the virtual stages of a rank"});
  expect_mistake(train("--moe-grouped-gemm"), {"", "; products of experts are always grouped; leave it out "});
  expect_mistake(train("--moe-router-dtype fp32"), {"", "; routers always compute in fp32"});
  expect_mistake(train("--dist.context_parallel_size=2"), {"", "; write dist.context_parallel_size=VALUE"});
  expect_mistake(run_program("doctor --seq-length 512"), {"", "not expected: --seq-length 512 (--help"});
  expect_mistake(train("--tie-word-embeddings"),
                 {"", "; write model.untie_embeddings_and_output_weights=VALUE; tie_word_embeddings=true is"});
  expect_mistake(train("--bf16"), {"", "not expected: --bf16; write mixed_precision.precision=bf16 (--help"});
  expect_mistake(train("--fp16"), {"", "; write mixed_precision.precision=fp16 (--help"});
  expect_mistake(train("--accumulate-allreduce-grads-in-fp32"), {"", "; gradients are always fp32; leave it out ("});
  expect_mistake(train("--grad-reduce-in-bf16"), {"", "; there is no such thing here: gradients are always fp32 ("});
  expect_mistake(train("--optimizer-cpu-offload"), {"", "; there is no such thing here; optimizer.exp_avg_dtype, "});
}

TEST_F(BadInput, SeveralFlagsInTheOrderTyped) {
  expect_mistake(train("--use-precision-aware-optimizer --exp-avg-dtype bf16 --xyzzyxyzzy --exp-avg-sq-dtype=bf16"),
                 {"",
                  "not expected: --use-precision-aware-optimizer --exp-avg-dtype --xyzzyxyzzy --exp-avg-sq-dtype=bf16; "
                  "--use-precision-aware-optimizer: write optimizer.exp_avg_dtype=bf16; it and exp_avg_sq_dtype say "
                  "what moments are stored as; there is no switch besides; "
                  "--exp-avg-dtype: write optimizer.exp_avg_dtype=VALUE; "
                  "--exp-avg-sq-dtype: write optimizer.exp_avg_sq_dtype=VALUE (--help"});
}

TEST_F(BadInput, NoGpu) {
  if (cuda::usable()) GTEST_SKIP() << "there is one";
  expect_refused({{"dist.device=cuda", "dist.device=cpu (--device cpu) runs without a GPU"}});
  expect_mistake(run_program("bench ops --device cuda"), {"", "dist.device=cpu (--device cpu) runs without a GPU"});
}

TEST_F(BadInput, MoreThanCanBeAddressed) {
  expect_refused(
      {{"model.num_attention_heads=16777216 model.kv_channels=16777216 train.seq_length=2147483647 "
        "train.micro_batch_size=1 train.global_batch_size=1",
        "needs more memory than can be addressed"}});
}

TEST_F(BadInput, ConfigFiles) {
  expect_mistake(run_program("train /no/such.yaml"), {"", "cannot open /no/such.yaml: No such file or directory"});
  expect_file_refused("", "own.yaml: empty");
  expect_file_refused("# nothing but a remark\n", "own.yaml: empty");
  expect_file_refused("model: {num_layers: 2", "own.yaml");
  expect_file_refused("model: " + std::string(100000, '[') + "\n",
                      "own.yaml:1: a list or map stands where a key should be");
  std::string nested = "model: ";
  for (int i = 0; i < 1000; ++i) nested += "{a: ";
  expect_file_refused(nested + "1" + std::string(1000, '}'), "nested deeper");
  expect_file_refused("model: &itself\n  arch: llama\n  rope_scaling: *itself\n", "anchors and aliases");
  expect_file_refused("extends: own.yaml\n", "extends itself");
  expect_file_refused("extends: other.yaml\n", "other.yaml");
  expect_file_refused(std::string("model:\n  arch: \xff\xfe\n"), "own.yaml");
  expect_file_refused("extends: " + source_path("configs/tests/tiny.yaml") + "\nmodel: {arch: null}\n", "model.arch");
}

TEST_F(BadInput, FreezePatterns) {
  expect_refused({{"'model.freeze=[*experts*]'", "quote a text that begins so, as in [\"*experts*\"]"},
                  {"\"model.freeze='*.q_prij.*'\"", "model.freeze: '*.q_prij.*' matches no parameter"},
                  {"\"model.freeze='*.q_proj.*'\"",
                   "matches model.layers.0.self_attn.q_proj.weight but not model.layers.0.self_attn.k_proj.weight, "
                   "model.layers.0.self_attn.v_proj.weight, and they are one parameter; "
                   "'model.layers.0.self_attn.qkv_proj.weight' freezes all of it"},
                  {"\"model.freeze='*'\"", "model.freeze: the patterns leave no parameter to train"}});
}

TEST_F(BadInput, NameOfTheConfigFile) {
  const auto file = folder_.write("caf\xe9.yaml", "extends: " + source_path("configs/tests/tiny.yaml") + "\n");
  const Outcome outcome = run_program(fmt::format("train {} run.dir={}", file.string(), run_dir()));
  expect_mistake(outcome, {"caf\\xe9.yaml", "(name of the config file): must be UTF-8 text, but byte 3 is 0xe9"});
  EXPECT_FALSE(fs::exists(run_dir()));
}

TEST_F(BadInput, Text) {
  const std::string text = "dataset.kind=text model.vocab_size=512 dataset.data_path=";
  const std::string empty = folder_.write("empty.txt", "").string(),
                    bytes = folder_.write("bytes.txt", "ab\ncd\xff\xfe").string();
  const std::string brief = folder_.write("brief.txt", "hello").string(),
                    ids = folder_.write("ids.txt", "1 2 3 99 100 4").string();
  fs::create_directory(folder_ / "nothing");
  expect_refused({{text + "/no/such.txt", "cannot open /no/such.txt: No such file or directory"},
                  {text + "'/no/*.txt'", "no file matches /no/*.txt"},
                  {text + (folder_ / "nothing").string(), "holds no files"},
                  {text + "/dev/zero", "is not a file"},
                  {text + empty, "the text file " + empty + " is empty"},
                  {text + bytes, bytes + ":2: the line is not UTF-8: byte 3 is 0xff"},
                  {text + folder_.write("a.jsonl", "{}").string(), "a.jsonl: dataset.kind=text reads plain text"},
                  {text + "[0.5," + brief + "]", "dataset.kind=text has no weights, and 0.5 is a number"},
                  {text + brief, "fewer than train.seq_length + 1 = 17"},
                  {text + brief + " model.vocab_size=61", "model.vocab_size=61"},
                  {text + ids + " tokenizer.tokenizer_type=NullTokenizer model.vocab_size=100", "ids from 0 to 99"},
                  {text, "dataset.data_path"},
                  {"dataset.kind=text model.vocab_size=512", "dataset.data_path is not given"}});
}

TEST_F(BadInput, PlacesThatCannotBeWritten) {
  const std::string file = folder_.write("file", "x").string();
  expect_refused({{"run.dir=/proc/no/such", "run.dir=/proc/no/such: No such file or directory"},
                  {"run.dir=" + file, "run.dir=" + file + ": Not a directory"},
                  {"run.dir=" + file + "/below", "Not a directory"},
                  {"checkpoint.save=/proc/no/such", "checkpoint.save=/proc/no/such: No such file or directory"},
                  {"checkpoint.save=" + file, "checkpoint.save=" + file + ": Not a directory"}});
  EXPECT_EQ(slurp(file), "x");
}

// Longer than any file system's names (255) or paths (4096).
TEST_F(BadInput, PathsThatAreTooLong) {
  const std::string name(300, 'x'), words = "File name too long";
  expect_refused({{"run.dir=" + name, words}, {"checkpoint.save=" + name, words}});
  expect_mistake(run_program("train " + name), {"config", words});
  expect_mistake(run_program("generate --model " + name), {"--model", words});
  expect_mistake(run_program("generate --model . --prompt-file " + name), {"--prompt-file", words});
}

// The longest path still allows metrics.jsonl of an earlier run, but not metrics.jsonl.1.
TEST_F(BadInput, AnEarlierFileThatCannotBeRenamed) {
  std::string folder = run_dir();
  constexpr std::size_t length = 4095 - sizeof "/metrics.jsonl" + 1;
  while (folder.size() + 102 < length) folder += "/" + std::string(100, 'd');
  folder += "/" + std::string(length - folder.size() - 1, 'd');
  fs::create_directories(folder);
  std::ofstream(folder + "/metrics.jsonl") << "old";
  expect_mistake(train("run.dir=" + folder), {"", "metrics.jsonl.1: File name too long"});
  EXPECT_EQ(slurp(folder + "/metrics.jsonl"), "old");
}

TEST_F(BadInput, OutputThatIsClosedOrFull) {
  for (const auto& [redirect, words] :
       {Mistake{">&-", "cannot write to the console"}, {"> /dev/full", "No space left on device"}}) {
    const Outcome outcome = train(redirect);
    EXPECT_EQ(outcome.status, 2) << outcome.output;
    EXPECT_NE(outcome.output.find(words), std::string::npos) << outcome.output;
    EXPECT_FALSE(fs::exists(folder_ / "run/metrics.jsonl"));
  }
}

// On a file system of 64 KiB that the run's own files fill: the run stops, and every line that it wrote is complete.
TEST_F(BadInput, FullDisk) {
  const std::string disk = (folder_ / "disk").string();
  fs::create_directory(disk);
  if (std::system(fmt::format("mount -t tmpfs -o size=64k none {} 2>/dev/null", disk).c_str()) != 0)
    GTEST_SKIP() << "only root can mount a small file system";
  const Outcome outcome = train(fmt::format("run.dir={}/run train.train_iters=2000", disk));
  const std::string metrics = slurp(disk + "/run/metrics.jsonl"), log = slurp(disk + "/run/log.txt");
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(disk + "/run")) names.push_back(entry.path().filename().string());
  EXPECT_EQ(std::system(fmt::format("umount {}", disk).c_str()), 0);
  EXPECT_EQ(outcome.status, 2);
  EXPECT_NE(outcome.output.find(": No space left on device"), std::string::npos) << outcome.output;
  EXPECT_EQ(metrics.substr(metrics.size() - 2), "}\n");
  EXPECT_EQ(log.back(), '\n');
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"config.resolved.yaml", "log.txt", "metrics.jsonl"}));
}

class BadCheckpoint : public BadInput {
 protected:
  void SetUp() override {
    const Outcome outcome = train("model.vocab_size=512 checkpoint.save=" + (folder_ / "good").string());
    ASSERT_EQ(outcome.status, 0) << outcome.output;
  }
  std::string good() const { return (folder_ / "good").string(); }

  static Outcome generate(const std::string& model, const std::string& options = "") {
    return run_program(
        fmt::format("generate --model {} --prompt hi --threads 1 --max-new-tokens 3 {}", model, options));
  }

  // A copy of the good one in which one file was changed by `damage`.
  template <class Damage>
  void expect_damage_noticed(const std::string& file, const std::string& words, Damage&& damage) const {
    const fs::path copy = folder_ / "copy";
    fs::remove_all(copy);
    fs::copy(good(), copy, fs::copy_options::recursive);
    std::string content = slurp(copy / file);
    ASSERT_FALSE(content.empty()) << file;
    const std::string before = content;
    damage(content);
    ASSERT_NE(content, before) << words;
    std::ofstream(copy / file, std::ios::binary) << content;
    expect_mistake(generate(copy.string()), {file, words});
  }
  void expect_edit_noticed(const std::string& file, const std::string& from, const std::string& to,
                           const std::string& words) const {
    expect_damage_noticed(file, words, [&](std::string& content) {
      const std::size_t at = content.find(from);
      if (at == std::string::npos) return;
      content.replace(at, from.size(), to);
      if (file.ends_with("manifest.json")) content = seal_manifest(content);  // the checksum must not reveal it
    });
  }
};

const std::string manifest = "step_00000004/manifest.json", weights = "step_00000004/rank_00000.safetensors";

TEST_F(BadCheckpoint, TheGoodOneIsRead) { EXPECT_EQ(generate(good()).status, 0); }

TEST_F(BadCheckpoint, Weights) {
  for (const std::size_t bytes : {0, 4, 1000, 100000})
    expect_damage_noticed(weights, fmt::format("rank_00000.safetensors has {} bytes, but the manifest says ", bytes),
                          [&](std::string& content) { content.resize(bytes); });
}

TEST_F(BadCheckpoint, Manifest) {
  for (const char* text : {"{", "[]", "null", "{\"format\":3}", "{\"format\":\"other\"}"})
    expect_damage_noticed(manifest, "manifest.json: not a manifest of a checkpoint",
                          [&](std::string& content) { content = text; });
  expect_damage_noticed(manifest, "not a manifest", [](std::string& content) { content = std::string(100000, '['); });
  expect_damage_noticed(manifest, "not a manifest", [](std::string& content) { content.resize(content.size() / 2); });
  expect_edit_noticed(manifest, "\"version\":2", "\"version\":3", "version 3, this program reads versions 1 and 2");
  expect_edit_noticed(manifest, "\"step\":4", "\"step\":-4", "'step' or 'config' is missing");
  expect_edit_noticed(manifest, "\"config\"", "\"confix\"", "'step' or 'config' is missing");
  expect_edit_noticed(manifest, "\"seed\"", "\"seat\"", "'consumed_samples', 'updates' or 'seed' is missing");
  expect_edit_noticed(manifest, "num_layers: 2", "num_layers: zwei", "'zwei' is not a whole number");
  expect_edit_noticed(manifest, "hidden_size: 32", "hidden_size: 64", "is [512,32], the model needs [512,64]");
  expect_edit_noticed(manifest, "num_layers: 2", "num_layers: 3", "has no tensor 'model.layers.2.");
  expect_edit_noticed(manifest, "num_layers: 2", "num_layers: 1", "are not tensors of this model");
  expect_edit_noticed(manifest, "\"bytes\":", "\"bytes\":9", "bytes, but the manifest says 9");
  expect_edit_noticed(manifest, "\"bytes\":", "\"bytes\":-", "file 'rank_00000.safetensors' has no 'bytes'");
  expect_edit_noticed(manifest, "\"crc32c\":\"", "\"crc32c\":\"0", "has no 'crc32c' of eight hexadecimal digits");
  expect_edit_noticed(manifest, "\"files\"", "\"fires\"", "'files' is missing");
  expect_edit_noticed(manifest, "\"started_from\"", "\"started\"", "'started_from' is missing");
  expect_edit_noticed(manifest, "\"seed\":", "\"seed\":1,\"seed\":", "'seed' occurs twice");
  expect_edit_noticed(manifest, "\"bytes\":", "\"bytes\":1,\"bytes\":", "'bytes' occurs twice");
  expect_edit_noticed(manifest, "\"step\":4", "\"step\":5", "is of step 5, but its folder is named as step 4");
  const auto flip = [](const std::string& words, std::size_t offset) {
    return [words, offset](std::string& content) { content.at(content.find(words) + words.size() + offset) ^= 1; };
  };
  for (const char* key : {"consumed_samples", "updates", "offset", "step", "config"})
    expect_damage_noticed(manifest, "manifest.json: its checksum is ", flip(fmt::format("\"{}\":", key), 1));
  expect_damage_noticed(manifest, "no checksum of it stands at its end",
                        [](std::string& content) { content.pop_back(); });
  expect_edit_noticed(manifest, "\"tensors\"", "\"sensors\"", "'tensors' is missing");
}

TEST_F(BadCheckpoint, TensorsOfTheManifest) {
  expect_edit_noticed(manifest, "\"dtype\":\"f32", "\"dtype\":\"f99", "lacks a known dtype, shape or pieces");
  expect_edit_noticed(manifest, "\"shape\":[", "\"shape\":[0,", "lacks a known dtype, shape or pieces");
  expect_edit_noticed(manifest, "\"shape\":[", "\"shape\":[4611686018427387904,", "lacks a known dtype, shape or");
  expect_edit_noticed(manifest, "\"pieces\"", "\"places\"", "lacks a known dtype, shape or pieces");
  expect_edit_noticed(manifest, "\"pieces\":[", "\"pieces\":[{},", "a piece of tensor 'lm_head.weight' names no file");
  expect_edit_noticed(manifest, "\"file\":\"rank", "\"file\":\"rang", "which 'files' does not list");
  expect_edit_noticed(manifest, "\"begin\":0", "\"begin\":-1", "a piece of tensor 'lm_head.weight' is no slice of it");
  expect_edit_noticed(manifest, "\"begin\":0", "\"begin\":600", "a piece of tensor 'lm_head.weight' is no slice of it");
  expect_edit_noticed(manifest, "\"from\":0", "\"from\":1", "'lm_head.weight' are not the whole tensor: slices");
  expect_edit_noticed(manifest, "\"offset\":", "\"offset\":9999", "'lm_head.weight' ends behind the end of");
  expect_edit_noticed(manifest, "\"pieces\":[", "\"pieces\":[],\"old\":[", "not the whole tensor: none of it is there");
  expect_edit_noticed(manifest, "\"model.norm.weight\"", "\"model.norm.height\"", "has no tensor 'model.norm.weight'");
}

// What a manifest names lies in its folder, as a file.
TEST_F(BadCheckpoint, FilesOfTheManifest) {
  for (const char* name : {"../step_00000004/rank_00000.safetensors", "/etc/passwd", ".hidden", "", ".."})
    expect_edit_noticed(manifest, "\"rank_00000.safetensors\":{", fmt::format("\"{}\":{{", name),
                        fmt::format("'{}' is not the name of a file in this folder", name));
  for (const auto& file : {weights, manifest}) {
    const fs::path linked = folder_ / "linked";
    fs::remove_all(linked);
    fs::copy(good(), linked, fs::copy_options::recursive);
    fs::remove(linked / file);
    fs::create_symlink(fs::path(good()) / file, linked / file);
    expect_mistake(generate(linked.string()), {file, "is a symbolic link"});
  }
}

TEST_F(BadCheckpoint, Folder) {
  expect_damage_noticed("latest", "which is not complete", [](std::string& content) { content = "step_9"; });
  expect_damage_noticed("latest", "names no folder here",
                        [](std::string& content) { content = "../good/step_00000004"; });
  expect_mistake(generate("/no/such"), {"", "/no/such: there is no such folder"});
  expect_mistake(generate(run_dir()), {"", "neither a checkpoint (no manifest.json) nor a folder of checkpoints"});
  fs::remove(folder_ / "good" / weights);
  expect_mistake(generate(good()), {"", "rank_00000.safetensors: No such file or directory"});
  fs::remove(folder_ / "good" / manifest);
  expect_mistake(generate(good()), {"", "which is not complete"});
}

TEST_F(BadCheckpoint, Options) {
  const auto refused = [&](const std::string& options, const std::string& words) {
    expect_mistake(run_program("generate --model " + good() + " " + options), {options, words});
  };
  refused("--prompt 'longer than sixteen tokens'", "the prompt's 26 tokens leave no room in the model's 16 positions");
  refused("--prompt-file /no/such", "cannot open /no/such");
  refused("--prompt-file " + folder_.write("empty", "").string(),
          "empty is empty; without a prompt a document is begun");
  refused("--prompt-file " + folder_.write("bytes", "ab\xff").string(), "bytes is not UTF-8 text: byte 2 is 0xff");
  refused("--prompt \"$(printf 'ab\\377')\"", "--prompt is not UTF-8 text: byte 2 is 0xff");
  refused("--prompt a --prompt-file b", "--prompt");
  refused("--prompt a --temperature -1", "--temperature is -1");
  refused("--prompt a --temperature nan", "--temperature is nan");
  refused("--prompt a --temperature warm", "--temperature");
  refused("--prompt a --temperature 1 --top-p 0", "--top-p is 0");
  refused("--prompt a --temperature 1 --top-p 1.5", "--top-p is 1.5");
  refused("--prompt a --temperature 1 --top-k -1", "--top-k is -1");
  refused("--prompt a --top-k 5", "--top-k requires --temperature");
  refused("--prompt a --top-p 0.9", "--top-p requires --temperature");
  refused("--prompt a --max-new-tokens 0", "--max-new-tokens 0");
  refused("--prompt a --threads -1", "--threads is -1");
  refused("--prompt a --threads 1000000", "--threads is 1000000");
  EXPECT_EQ(generate(good(), "--seed 1").status, 0);
  EXPECT_EQ(
      run_program("generate --threads 1 --prompt a --max-new-tokens 9223372036854775807 --model " + good()).status, 0);
}

}  // namespace
}  // namespace tera::test
