// Which files go with a model from folder to checkpoint to folder, and which do not.

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tera/checkpoint/checkpoint.h"
#include "tera/checkpoint/safetensors.h"
#include "tests/end_to_end/letters_tokenizer.h"
#include "tests/end_to_end/program.h"
#include "tests/support/expect_error.h"
#include "tests/support/paths.h"
#include "tests/support/temp_folder.h"

namespace tera::test {
namespace {

namespace fs = std::filesystem;

class HfRuns : public testing::Test {
 protected:
  HfRuns() {
    fs::copy(source_path("tests/golden/hf/gate_up_order"), folder_ / "hf");
    folder_.write("hf/tokenizer.json", letters_tokenizer());
    folder_.write("hf/tokenizer_config.json", R"({"eos_token": "</s>", "bos_token": "<s>"})");
    folder_.write("hf/generation_config.json", R"({"eos_token_id": [1, 5], "bos_token_id": 0})");
    folder_.write("hf/chat_template.jinja", "x");
    folder_.write("own/tokenizer.json", letters_tokenizer());
    folder_.write("run.yaml", R"(
train: {train_iters: 2, micro_batch_size: 1, global_batch_size: 2, seq_length: 8, eval_iters: 0}
optimizer: {lr: 1e-3}
dataset: {kind: mock}
dist: {device: cpu, threads: 1}
)");
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  static std::string stored_model() {
    return " model.arch=llama model.num_layers=1 model.hidden_size=16 model.ffn_hidden_size=16"
           " model.num_attention_heads=2 model.vocab_size=29";
  }
  std::string train(const std::string& words) const {
    return "train " + path("run.yaml") + " run.dir=" + path("run") + " " + words;
  }
  std::string done(const std::string& arguments) const {
    const Outcome outcome = run_program(arguments);
    EXPECT_EQ(outcome.status, 0) << arguments << "\n" << outcome.output;
    return outcome.output;
  }
  void refused(const std::string& arguments, const std::string& part) const {
    const Outcome outcome = run_program(arguments);
    EXPECT_EQ(outcome.status, 2) << arguments << "\n" << outcome.output;
    EXPECT_TRUE(contains(outcome.output, part)) << outcome.output;
  }
  nlohmann::json json(const std::string& name) const { return nlohmann::json::parse(slurp(folder_ / name)); }
  void flip_a_bit(const fs::path& file, std::streamoff from_end) const {
    std::fstream out(file, std::ios::in | std::ios::out | std::ios::binary);
    out.seekg(-from_end, std::ios::end);
    const char byte = static_cast<char>(out.peek());
    out.seekp(-from_end, std::ios::end);
    out.put(static_cast<char>(byte ^ 1));
  }

  TempFolder folder_;
};

TEST_F(HfRuns, DamagedCheckpointsAreNotExportedNorComputedWith) {
  done("import --model " + path("hf") + " --output " + path("ck"));
  flip_a_bit(folder_ / "ck/step_00000000/rank_00000.safetensors", 9);
  const std::string logits = "logits --model " + path("ck") + " --tokens 1,2 --output " + path("new/folder/logits");
  refused("export --model " + path("ck") + " --output " + path("out"), "the file was damaged");
  refused("generate --model " + path("ck") + " --prompt ab", "the file was damaged");
  refused(logits, "the file was damaged");
  refused(logits + " --ranks 2 dist.tensor_model_parallel_size=2", "the file was damaged");
  EXPECT_FALSE(fs::exists(folder_ / "out"));
  EXPECT_FALSE(fs::exists(folder_ / "new"));
  done(logits + " --no-verify");
  EXPECT_TRUE(fs::exists(folder_ / "new/folder/logits")) << "in a folder that was not there";
}

TEST_F(HfRuns, OnlyWhatTheManifestListsGoesAlong) {
  for (const char* name : {"tokenizer_config.json", "generation_config.json", "chat_template.jinja"})
    fs::remove(folder_ / "hf" / name);
  done("import --model " + path("hf") + " --output " + path("ck"));
  folder_.write("secret", "s");
  fs::create_symlink(folder_ / "secret", folder_ / "ck/step_00000000/vocab.txt");
  folder_.write("ck/step_00000000/generation_config.json", R"({"eos_token_id": 3})");
  folder_.write("ck/step_00000000/kernels.json", "{}");
  done("export --model " + path("ck") + " --output " + path("out"));
  EXPECT_TRUE(fs::exists(folder_ / "out/tokenizer.json"));
  for (const char* name : {"vocab.txt", "generation_config.json", "kernels.json"})
    EXPECT_FALSE(fs::exists(folder_ / "out" / name)) << name;
  folder_.write("ck/step_00000000/tokenizer_config.json", R"({"eos_token": "a"})");
  refused("generate --model " + path("ck") + " --prompt ab", "its manifest does not list it");
}

TEST_F(HfRuns, KernelChoicesThatNoManifestListsAreNotTaken) {
  const std::string words = stored_model() + " checkpoint.save=" + path("ck");
  done(train(words));
  folder_.write("ck/step_00000002/kernels.json", "{}");
  fs::remove_all(folder_ / "run");
  done(train(words + " train.train_iters=3"));
  EXPECT_FALSE(fs::exists(folder_ / "run/kernels.json"));
}

TEST_F(HfRuns, AModelOfOurOwnGoesOutWithItsTokenizer) {
  const std::string tokenizer = " tokenizer.tokenizer_type=HuggingFaceTokenizer tokenizer.tokenizer_model=";
  done(train(stored_model() + " checkpoint.save=" + path("ck") + tokenizer + path("own/tokenizer.json")));
  fs::remove_all(folder_ / "own");
  done("export --model " + path("ck") + " --output " + path("out"));
  EXPECT_EQ(slurp(folder_ / "out/tokenizer.json"), letters_tokenizer());
  const auto config = json("out/tokenizer_config.json");
  EXPECT_EQ(config["tokenizer_class"], "PreTrainedTokenizerFast");
  EXPECT_EQ(config["eos_token"], "</s>");
  EXPECT_EQ(json("out/config.json")["eos_token_id"], 1);
  EXPECT_EQ(json("out/generation_config.json")["eos_token_id"], 1);
  const std::string generate = " --prompt ab --device cpu --threads 1 --max-new-tokens 3";
  EXPECT_EQ(done("generate --model " + path("out") + generate), done("generate --load " + path("ck") + generate));
}

TEST_F(HfRuns, AnotherTokenizerLeavesNothingOfTheFoldersOwn) {
  const std::string tokenizer = " tokenizer.tokenizer_type=HuggingFaceTokenizer tokenizer.tokenizer_model=";
  done(train("model.hf=" + path("hf") + " checkpoint.save=" + path("ck") + tokenizer + path("own")));
  for (const char* name : {"tokenizer_config.json", "generation_config.json", "chat_template.jinja"})
    EXPECT_FALSE(fs::exists(folder_ / "ck/step_00000002" / name)) << name;
  EXPECT_TRUE(contains(done("export --model " + path("ck") + " --output " + path("out")), "another tokenizer"));
  EXPECT_FALSE(fs::exists(folder_ / "out/chat_template.jinja"));
  EXPECT_EQ(json("out/generation_config.json")["eos_token_id"], 1);
  EXPECT_EQ(json("out/tokenizer_config.json")["tokenizer_class"], "PreTrainedTokenizerFast");
  EXPECT_EQ(json("out/config.json")["eos_token_id"], 1);

  done(train("model.hf=" + path("hf") + " checkpoint.save=" + path("same")));
  done("export --model " + path("same") + " --output " + path("kept"));
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"})
    EXPECT_EQ(slurp(folder_ / "kept" / name), slurp(folder_ / "hf" / name)) << name;
}

// Bytes are a tokenizer too, but not that of a model from elsewhere.
TEST_F(HfRuns, AModelWithoutTokenizerDoesNotGetOne) {
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) fs::remove(folder_ / "hf" / name);
  refused("generate --prompt ab --model " + path("hf"), "has no tokenizer.json; name one");
  done("import --model " + path("hf") + " --output " + path("ck"));
  refused("generate --prompt ab --model " + path("ck"), "it has no tokenizer, and " + path("hf") + " had none");
}

TEST_F(HfRuns, DoublesAreRoundedAndThatIsSaid) {
  {
    const SafetensorsFile in(folder_ / "hf/model.safetensors");
    std::vector<SafetensorsSpec> specs;
    for (const SafetensorsEntry& entry : in.entries())
      specs.push_back({entry.name, DType::f64, in.get(entry.name).shape});
    SafetensorsWriter out(folder_ / "doubles", specs);
    for (const SafetensorsSpec& spec : specs) {
      const std::vector<float> values = in.read_floats(spec.name);
      const std::vector<double> wide(values.begin(), values.end());
      out.write(spec.name, std::as_bytes(std::span(wide)));
    }
    out.finish();
  }
  fs::rename(folder_ / "doubles", folder_ / "hf/model.safetensors");
  const std::string output = done("import --model " + path("hf") + " --output " + path("ck"));
  EXPECT_TRUE(contains(output, "are F64 and were rounded to F32")) << output;
  EXPECT_TRUE(contains(done("inspect " + path("ck")), "f32"));
}

TEST_F(HfRuns, MasterWeightsAreExportedAsFp32) {
  done(train(stored_model() + " checkpoint.save=" + path("ck") + " mixed_precision.precision=bf16"));
  done("export --model " + path("ck") + " --output " + path("fp32") + " --dtype fp32");
  done("export --model " + path("ck") + " --output " + path("stored"));
  const SafetensorsFile exact(folder_ / "fp32/model.safetensors"), rounded(folder_ / "stored/model.safetensors");
  const Checkpoint checkpoint(folder_ / "ck");
  CheckpointReader reader(checkpoint);
  for (const SafetensorsEntry& entry : exact.entries()) {
    const std::vector<float> values = exact.read_floats(entry.name);
    EXPECT_EQ(values, reader.read_floats("optimizer.master." + entry.name)) << entry.name;
    EXPECT_EQ(rounded.get(entry.name).dtype, DType::bf16);
  }
  const std::string matrix = "model.layers.0.mlp.up_proj.weight";
  EXPECT_NE(exact.read_floats(matrix), rounded.read_floats(matrix));
}

TEST_F(HfRuns, ARunGoesOnWhenTheFolderThatItBeganWithIsGone) {
  const std::string words = "model.hf=" + path("hf") + " checkpoint.save=" + path("ck") + " checkpoint.keep_last=1 ";
  done(train(words));
  fs::rename(folder_ / "hf", folder_ / "moved");
  for (const char* steps : {"4", "6"})
    EXPECT_TRUE(contains(done(train(words + " train.train_iters=" + steps)), "going on after step"));
  done("export --model " + path("ck") + " --output " + path("out"));
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"})
    EXPECT_EQ(slurp(folder_ / "out" / name), slurp(folder_ / "moved" / name)) << name;
  EXPECT_EQ(json("out/config.json")["hidden_size"], json("moved/config.json")["hidden_size"]);
  refused(train("model.hf=" + path("hf") + " checkpoint.save=" + path("elsewhere")), "there is no such folder");
}

// The checkpoint knows the files of its tokenizer, whatever they are called.
TEST_F(HfRuns, ARunDoesNotGoOnWithAnotherTokenizer) {
  folder_.write("text.txt", "the quick brown fox jumps over the lazy dog the quick brown fox jumps over the lazy dog");
  std::string other = letters_tokenizer();
  const std::size_t a = other.find("\"a\": 2");
  other.replace(a, 6, "\"a\": 3").replace(other.find("\"b\": 3"), 6, "\"b\": 2");
  folder_.write("other/tokenizer.json", other);
  folder_.write("same/renamed.json", letters_tokenizer());
  const std::string text = " dataset.kind=text dataset.split='1' dataset.data_path=" + path("text.txt") +
                           stored_model() + " model.vocab_size=512",
                    save = " checkpoint.save=" + path("ck"), longer = " train.train_iters=4";
  const auto tokenizer = [&](const std::string& name) {
    return " tokenizer.tokenizer_type=HuggingFaceTokenizer tokenizer.tokenizer_model=" + path(name);
  };
  done(train(text + save + tokenizer("own")));
  const std::string carried = path("ck/step_00000002/tokenizer.json");
  for (const std::string& words : {save, " checkpoint.load=" + path("ck")}) {
    refused(train(text + words + longer + tokenizer("other")),
            "tokenizer.tokenizer_model=" + path("other") + " differs from " + carried);
    refused(train(text + words + longer + " tokenizer.tokenizer_type=ByteTokenizer"),
            "tokenizer.tokenizer_type=ByteTokenizer in place of " + carried);
  }
  refused(train(text + save + longer + tokenizer("other")), "with another folder as checkpoint.save");
  done(train(text + " checkpoint.load=" + path("ck") + " checkpoint.finetune=true checkpoint.save=" + path("tuned") +
             tokenizer("other")));
  EXPECT_TRUE(contains(done(train(text + save + longer + tokenizer("same/renamed.json"))), "going on after step 2"));
  EXPECT_TRUE(contains(done(train(text + save + " train.train_iters=6" + tokenizer("own"))), "going on after step 4"));
  EXPECT_FALSE(
      contains(done(train(text + save + " train.train_iters=7" + tokenizer("own"))), "tokenizer.tokenizer_model "))
      << "it is not said to be another one";
}

TEST_F(HfRuns, AnImportedModelIsTrainedWithoutDescribingItAgain) {
  done("import --model " + path("hf") + " --output " + path("imported"));
  fs::rename(folder_ / "hf", folder_ / "moved");
  const std::string output =
      done(train("checkpoint.load=" + path("imported") + " train.seed=77 checkpoint.save=" + path("ck")));
  EXPECT_TRUE(contains(output, "weights from")) << output;
  done(train("checkpoint.load=" + path("imported") + " checkpoint.finetune=true checkpoint.save=" + path("tuned")));
  done("export --model " + path("ck") + " --output " + path("out"));
  EXPECT_EQ(slurp(folder_ / "out/chat_template.jinja"), "x");
  EXPECT_EQ(json("out/config.json")["vocab_size"], 29);
}

TEST_F(HfRuns, ATextBeginsWithTheModelsFirstTokenAndEndsAtItsLastPosition) {
  std::string plain = letters_tokenizer();
  const std::size_t begin = plain.find("\"post_processor\": {"), end = plain.find("\"decoder\"");
  folder_.write("hf/tokenizer.json", plain.replace(begin, end - begin, "\"post_processor\": null, "));
  folder_.write("hf/generation_config.json", R"({"eos_token_id": 1000, "bos_token_id": 0})");
  const std::string generate = "generate --device cpu --threads 1 --model " + path("hf");
  EXPECT_TRUE(done(generate + " --max-new-tokens 1").starts_with("<s>"));
  EXPECT_TRUE(contains(done(generate + " --prompt ab --max-new-tokens 1000"), "because the model has 40 positions"));
  EXPECT_FALSE(contains(done(generate + " --prompt ab --max-new-tokens 3"), "positions"));
}

TEST_F(HfRuns, InspectSaysWhetherAFolderCanBeUsed) {
  EXPECT_TRUE(contains(done("inspect --verify " + path("hf")), "none in such folders"));
  done("import --model " + path("hf") + " --output " + path("ck"));
  fs::remove(folder_ / "ck/latest");
  EXPECT_TRUE(contains(done("inspect --verify " + path("ck")), "checksums   good"));
  EXPECT_TRUE(contains(done("inspect " + path("ck")), "bf16"));
  EXPECT_FALSE(contains(done("inspect " + path("ck")), "moments")) << "weights alone";
  EXPECT_TRUE(contains(done("inspect " + path("hf/model.safetensors")), "bf16"));
  refused("inspect --verify " + path("hf/model.safetensors"), "checksums are in checkpoints");
  refused("inspect " + folder_.path().string(), "they are in " + path("ck"));
  fs::remove(folder_ / "hf/model.safetensors");
  refused("inspect " + path("hf"), "neither model.safetensors");
}

TEST_F(HfRuns, DifferencesAreSaidInTheWordsOfTheConfig) {
  const std::string words = stored_model() + " checkpoint.save=" + path("ck") + " ";
  done(train(words));
  refused(train(words + "model.num_layers=2"), "model.num_layers is 1 there and 2 in the config; it has no tensor");
  refused(train(words + "model.vocab_size=28"), "the vocabulary is 29 in the checkpoint, and 28 by the config");
  refused("generate --model " + folder_.path().string(), "they are in " + path("ck"));
}

}  // namespace
}  // namespace tera::test
