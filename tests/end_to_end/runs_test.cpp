// Runs and checkpoints of the real program: the files it writes, and what can be done with them.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "tera/checkpoint/checkpoint.h"
#include "tera/checkpoint/checkpoint_writer.h"
#include "tera/infer/generator.h"
#include "tests/end_to_end/program.h"
#include "tests/end_to_end/training_run.h"
#include "tests/support/model.h"
#include "tests/support/paths.h"
#include "tests/support/temp_folder.h"

namespace tera::test {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> loss_column(const fs::path& folder) { return column(folder, "loss"); }

class Runs : public testing::Test {
 protected:
  void expect_run(const std::string& config, const std::string& name, const std::string& overrides = "") const {
    const Outcome outcome =
        run_program(fmt::format("train {} run.dir={} {}", config, (folder_ / name).string(), overrides));
    ASSERT_EQ(outcome.status, 0) << outcome.output;
  }
  static std::string config(const std::string& name) { return source_path("configs/tests/") + name + ".yaml"; }

  TempFolder folder_;
};

TEST_F(Runs, TwoOfOneConfigHaveOneLossColumn) {
  expect_run(config("tiny"), "a");
  expect_run(config("tiny"), "b", "dist.threads=3");
  const auto a = loss_column(folder_ / "a");
  EXPECT_EQ(a.size(), 10u);
  EXPECT_EQ(a, loss_column(folder_ / "b"));
  for (const char* name : {"metrics.jsonl", "log.txt", "config.resolved.yaml", "loss.svg"})
    EXPECT_TRUE(fs::exists(folder_ / "a" / name)) << name;
}

TEST_F(Runs, TheResolvedConfigGivesTheSameRun) {
  expect_run(config("tiny_mistral"), "a",
             "optimizer.lr=2e-3 model.rope_scaling.type=linear model.rope_scaling.factor=2");
  expect_run((folder_ / "a/config.resolved.yaml").string(), "b");
  EXPECT_EQ(loss_column(folder_ / "a"), loss_column(folder_ / "b"));
  EXPECT_EQ(loss_column(folder_ / "b").size(), 10u);
}

TEST_F(Runs, WarningsOfTheSetupAreInTheLog) {
  tera::Setup setup = load_setup("tiny", {"run.dir=" + (folder_ / "a").string()});
  setup.warnings = {"the GPU is not used"};
  train(setup, {});
  EXPECT_NE(slurp(folder_ / "a/log.txt").find("the GPU is not used\n"), std::string::npos);
}

TEST_F(Runs, AnEarlierRunOfTheNameIsKept) {
  expect_run(config("tiny"), "a");
  expect_run(config("tiny"), "a", "train.seed=2");
  EXPECT_EQ(loss_column(folder_ / "a").size(), 10u);
  EXPECT_TRUE(fs::exists(folder_ / "a/metrics.jsonl.1"));
}

TEST_F(Runs, AnInterruptEndsAfterTheStep) {
  const std::string run = (folder_ / "run").string(), save = (folder_ / "saved").string();
  // Interrupted as soon as the first step is in the file; a run that ignores it would go on for minutes.
  const Outcome outcome =
      run_program(fmt::format("train {} run.dir={} checkpoint.save={} train.train_iters=1000000 train.eval_iters=0 & "
                              "for i in $(seq 200); do [ -s {}/metrics.jsonl ] && break; sleep 0.05; done; kill -INT "
                              "$!; wait $!; echo status $?",
                              config("tiny"), run, save, run));
  EXPECT_NE(outcome.output.find("stopped on request after step "), std::string::npos) << outcome.output.substr(0, 2000);
  EXPECT_NE(outcome.output.find("status 0"), std::string::npos);
  const std::string metrics = slurp(folder_ / "run/metrics.jsonl");
  EXPECT_EQ(metrics.substr(metrics.size() - 2), "}\n");
  const Checkpoint checkpoint(save);
  EXPECT_EQ(checkpoint.step(), static_cast<std::int64_t>(loss_column(run).size()));
}

// These evaluations would take hours; the checkpoint that they evaluate is on the disk before they begin.
TEST_F(Runs, AnInterruptedEvaluationLosesNothing) {
  int number = 0;
  for (const std::string when : {"train.train_iters=2", "train.train_iters=2 checkpoint.async_save=true --ranks 2",
                                 "train.train_iters=100 train.eval_interval=2 checkpoint.save_interval=2 --ranks 2"}) {
    SCOPED_TRACE(when);
    const fs::path run = folder_ / fmt::format("run{}", ++number), save = run / "saved";
    const Outcome outcome = run_program(
        fmt::format("train {} run.dir={} checkpoint.save={} train.eval_iters=100000000 scheduler.lr_warmup_iters=0 {} "
                    "& for i in $(seq 200); do [ -e "
                    "{}/latest ] && break; sleep 0.05; done; sleep 0.2; kill -INT $!; for i in $(seq 200); do kill -0 "
                    "$! || break; sleep 0.05; done; kill -KILL $!; wait $!; echo status $?",
                    config("tiny"), run.string(), save.string(), when, save.string()));
    EXPECT_NE(outcome.output.find("the evaluation after step 2 was not finished: stopped on request"),
              std::string::npos)
        << outcome.output.substr(0, 2000);
    EXPECT_NE(outcome.output.find("status 0"), std::string::npos) << outcome.output.substr(0, 2000);
    EXPECT_EQ(Checkpoint(save).step(), 2);
    EXPECT_EQ(loss_column(run).size(), 2u);
    EXPECT_TRUE(column(run, "eval_loss").empty());
  }
}

TEST_F(Runs, SaysThatNothingIsSaved) {
  const std::string run = (folder_ / "run").string();
  const Outcome outcome = run_program(fmt::format(
      "train {} run.dir={} checkpoint.save_interval=5 train.train_iters=1000000 train.eval_iters=0 & "
      "for i in $(seq 200); do [ -s {}/metrics.jsonl ] && break; sleep 0.05; done; kill -INT $!; wait $!; echo status "
      "$?",
      config("tiny"), run, run));
  EXPECT_NE(outcome.output.find("nothing will be saved: other keys of checkpoint are given"), std::string::npos)
      << outcome.output.substr(0, 2000);
  EXPECT_NE(outcome.output.find("; nothing was saved, as no checkpoint.save is given"), std::string::npos);
  EXPECT_NE(outcome.output.find("status 0"), std::string::npos);
}

// One step of this run takes many seconds.
TEST_F(Runs, ALaterInterruptEndsAtOnce) {
  const std::string run = (folder_ / "run").string();
  const Outcome outcome = run_program(fmt::format(
      "train {} run.dir={} train.global_batch_size=131072 train.train_iters=4 train.eval_iters=0 & "
      "for i in $(seq 900); do [ -e {}/metrics.jsonl ] && break; sleep 0.05; done; sleep 0.3; kill -INT $!; sleep 0.3; "
      "kill -INT $!; sleep 2; kill -0 $! && echo still at it; kill -INT $!; wait $!; echo status $?",
      config("tiny"), run, run));
  EXPECT_NE(outcome.output.find("still at it"), std::string::npos) << outcome.output.substr(0, 2000);
  EXPECT_NE(outcome.output.find("stopping after this step; nothing will be saved, as no checkpoint.save is given"),
            std::string::npos)
      << outcome.output.substr(0, 2000);
  EXPECT_NE(outcome.output.find("status 130"), std::string::npos) << outcome.output.substr(0, 2000);
  EXPECT_EQ(slurp(folder_ / "run/metrics.jsonl"), "");
}

TEST_F(Runs, WeightsComeBackBitForBit) {
  for (const char* name : {"tiny", "tiny_gpt", "tiny_qwen3"}) {
    const tera::Setup setup = load_setup(name, {"train.train_iters=3"});
    Backend backend = make_backend(setup.config.dist);
    TrainingStep first(setup), second(load_setup(name, {"train.train_iters=3", "train.seed=99"}));
    first.bind(backend);
    const auto weights = read_weights(first.params(), *backend.ops);
    save_checkpoint(folder_ / name, {.step = 7, .config_yaml = "x"}, first.params(), *backend.ops, *backend.device);
    Backend other = make_backend(setup.config.dist);
    second.bind(other);
    EXPECT_FALSE(read_weights(second.params(), *other.ops) == weights) << name;
    const Checkpoint checkpoint(folder_ / name);
    EXPECT_EQ(checkpoint.step(), 7);
    checkpoint.load_weights(second.params(), *other.ops);
    EXPECT_TRUE(read_weights(second.params(), *other.ops) == weights) << name;
  }
}

// Greedy text of a model whose logits are computed anew for all tokens each time.
std::vector<std::int32_t> generate_without_cache(const Setup& setup, const Checkpoint& checkpoint,
                                                 std::vector<std::int32_t> tokens, std::int64_t count) {
  const auto prompt = static_cast<std::ptrdiff_t>(tokens.size());
  for (std::int64_t i = 0; i < count; ++i) {
    Model model(setup.model, {.seq = static_cast<std::int64_t>(tokens.size())});
    checkpoint.load_weights(model.params(), model.ops());
    const std::vector<float> logits = model.logits({.tokens = tokens, .targets = tokens, .batch = 1});
    const auto last = logits.end() - setup.model.padded_vocab;
    tokens.push_back(static_cast<std::int32_t>(std::max_element(last, last + setup.model.vocab) - last));
  }
  return {tokens.begin() + prompt, tokens.end()};
}

TEST_F(Runs, GenerationFromTheCacheEqualsGenerationWithout) {
  // Keys of training that must change nothing here: dropped rows of experts, dynamic context parallelism.
  const std::vector<std::pair<const char*, std::vector<std::string>>> models{
      {"tiny_mistral", {}},
      {"tiny_gpt", {}},
      {"tiny_mla", {}},
      {"tiny_mixtral", {"model.moe.expert_capacity_factor=0.3", "model.moe.router_force_load_balancing=true"}}};
  for (const auto& [name, of_training] : models) {
    const std::string save = (folder_ / (std::string(name) + "-saved")).string();
    expect_run(config(name), name,
               "train.train_iters=3 model.init_method_std=0.4 train.eval_iters=0 checkpoint.save=" + save);
    const Checkpoint checkpoint(save);
    const Overrides no_loss{"model.moe.aux_loss_coeff=0"};
    const tera::Setup setup = load_setup(name, of_training.empty() ? Overrides{} : no_loss);
    const std::vector<std::int32_t> prompt{5, 11, 2};
    const auto expected = generate_without_cache(setup, checkpoint, prompt, 12);
    for (const std::int64_t threads : {1, 3}) {
      Backend backend = make_backend({.device = DeviceChoice::cpu, .threads = threads});
      Generator generator(load_setup(name, of_training), backend, {.max_prompt = std::ssize(prompt), .max_tokens = 15});
      checkpoint.load_weights(generator.params(), *backend.ops);
      std::vector<std::int32_t> text;
      GenerateOptions greedy{.max_new_tokens = 12};
      greedy.sampling.temperature = 0;
      generator.generate(prompt, greedy, [&](std::int32_t token) { text.push_back(token); });
      EXPECT_EQ(text, expected) << name << ", " << threads << " threads";
    }
    EXPECT_GT(std::set<std::int32_t>(expected.begin(), expected.end()).size(), 1u) << "a dull text proves little";
  }
}

TEST_F(Runs, TheProgramGeneratesTheSameWithAnyNumberOfThreads) {
  const std::string save = (folder_ / "saved").string();
  expect_run(config("tiny"), "run", "model.vocab_size=512 checkpoint.save=" + save);
  const std::string greedy = "generate --model " + save + " --prompt ab --max-new-tokens 10 --threads ";
  const std::string drawn =
      "generate --model " + save + " --prompt ab --temperature 1 --top-k 40 --top-p 0.9 --seed 3 --threads ";
  for (const auto& arguments : {greedy, drawn}) {
    const Outcome one = run_program(arguments + "1");
    EXPECT_EQ(one.status, 0) << one.output;
    EXPECT_EQ(one.output, run_program(arguments + "3").output);
  }
}

}  // namespace
}  // namespace tera::test
