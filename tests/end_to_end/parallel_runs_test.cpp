// Runs on several ranks through the real program: the same losses, the same files, the same text as on one.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tera/checkpoint/checkpoint.h"
#include "tests/end_to_end/program.h"
#include "tests/support/paths.h"
#include "tests/support/temp_folder.h"

namespace tera::test {
namespace {

namespace fs = std::filesystem;

const std::string tp2 = " dist.tensor_model_parallel_size=2", pp2 = " dist.pipeline_model_parallel_size=2",
                  cp2 = " dist.context_parallel_size=2", zero = " ddp.data_parallel_sharding_strategy=";

class ParallelRuns : public testing::Test {
 protected:
  static std::string config(const std::string& name) { return source_path("configs/tests/") + name + ".yaml"; }

  Outcome train(const std::string& name, const std::string& arguments) const {
    return run_program(
        fmt::format("train {} run.dir={} dist.timeout_seconds=60 {}", config(name), run_folder_.string(), arguments));
  }
  void expect_trained(const std::string& name, const std::string& arguments) const {
    const Outcome outcome = train(name, arguments);
    ASSERT_EQ(outcome.status, 0) << arguments << "\n" << outcome.output;
  }
  std::vector<double> numbers(const std::string& key) const {
    std::vector<double> values;
    for (const std::string& text : column(run_folder_, key)) values.push_back(std::stod(text));
    return values;
  }
  // The weights that a run of the given arguments saves.
  using Weights = std::map<std::string, std::vector<float>>;
  Weights saved_weights(const std::string& name, const std::string& arguments) const {
    const fs::path save = folder_ / "saved";
    fs::remove_all(save);
    expect_trained(name, fmt::format("checkpoint.save={} {}", save.string(), arguments));
    const Checkpoint checkpoint(save);
    checkpoint.verify();
    CheckpointReader reader(checkpoint);
    Weights weights;
    for (const auto& tensor : checkpoint.manifest().tensors) {
      const std::string master = "optimizer.master." + tensor.first;
      if (tensor.first.starts_with("optimizer.")) continue;
      weights[tensor.first] = reader.read_floats(checkpoint.find(master) ? master : tensor.first);
    }
    return weights;
  }
  static std::size_t count(const std::string& text, const std::string& words) {
    std::size_t found = 0;
    for (std::size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) ++found;
    return found;
  }

  TempFolder folder_;
  fs::path run_folder_ = folder_ / "run";
};

void expect_near(const std::vector<double>& found, const std::vector<double>& wanted, const std::string& what) {
  ASSERT_EQ(found.size(), wanted.size()) << what;
  for (std::size_t i = 0; i < found.size(); ++i)
    EXPECT_NEAR(found[i], wanted[i], 1e-5 * std::abs(wanted[i])) << what << ", line " << i;
}

// What metrics.jsonl reports of experts: loads to the last token, losses but for rounding.
TEST_F(ParallelRuns, DeepSeekOnFourRanks) {
  expect_trained("tiny_deepseek_v3", "");
  const auto losses = numbers("loss"), norms = numbers("grad_norm");
  ASSERT_EQ(losses.size(), 10u);
  expect_trained("tiny_deepseek_v3", "--ranks 4 " + tp2 +
                                         " dist.expert_model_parallel_size=4 dist.expert_tensor_parallel_size=1 "
                                         "model.moe.token_dispatcher_type=alltoall");
  expect_near(numbers("loss"), losses, "loss");
  expect_near(numbers("grad_norm"), norms, "norm");
  const std::string log = slurp(run_folder_ / "log.txt");
  EXPECT_EQ(count(log, "4 ranks: tp 2 x pp 1 x dp 2, experts etp 1 x ep 4 x edp 1 (alltoall)"), 1u) << log;
}

TEST_F(ParallelRuns, ExpertsAreReportedAlike) {
  const std::string all = "logger.log_expert_load=true train.train_iters=4 ";
  const auto lines = [&] {
    std::vector<nlohmann::json> read;
    std::ifstream in(run_folder_ / "metrics.jsonl");
    for (std::string line; std::getline(in, line);) read.push_back(nlohmann::json::parse(line));
    return read;
  };
  expect_trained("sweep_moe_bias", all);
  const std::vector<nlohmann::json> alone = lines();
  ASSERT_EQ(alone.size(), 4u);
  for (const nlohmann::json& line : alone) {
    const auto load = line.at("moe.expert_load").get<std::vector<std::vector<int>>>();
    ASSERT_EQ(load.size(), 3u);
    for (std::size_t layer = 0; layer < load.size(); ++layer) {
      int sum = 0;
      for (const int tokens : load[layer]) sum += tokens;
      EXPECT_EQ(sum, 16 * 12 * 2) << "sequences, tokens, choices";
      const auto unused = std::count(load[layer].begin(), load[layer].end(), 0);
      EXPECT_DOUBLE_EQ(line.at("moe.load_max_over_mean")[layer],
                       *std::max_element(load[layer].begin(), load[layer].end()) * 6.0 / sum);
      EXPECT_DOUBLE_EQ(line.at("moe.unused_experts")[layer], static_cast<double>(unused) / 6);
    }
    EXPECT_FALSE(line.contains("load_balancing_loss"));
    EXPECT_GE(line.at("seq_load_balancing_loss"), 0.9) << "1 of evenly used experts";
    EXPECT_LE(line.at("seq_load_balancing_loss"), 2);
    EXPECT_GT(line.at("z_loss"), 0);
  }
  EXPECT_EQ(alone[0].at("global_load_balancing_loss"), 0) << "there is no step before";
  EXPECT_GE(alone[1].at("global_load_balancing_loss"), 0.9);
  for (const std::string& layout :
       {"--ranks 2 " + tp2, "--ranks 2 " + tp2 + " dist.sequence_parallel=true", "--ranks 4 " + pp2 + zero + "optim",
        "--ranks 2 " + zero + "optim_grads_params", "--ranks 2 " + cp2, "--ranks 4 " + cp2 + pp2}) {
    SCOPED_TRACE(layout);
    fs::remove_all(run_folder_);
    expect_trained("sweep_moe_bias", all + layout);
    const std::vector<nlohmann::json> found = lines();
    ASSERT_EQ(found.size(), alone.size());
    for (std::size_t i = 0; i < alone.size(); ++i) {
      for (const char* key : {"moe.expert_load", "moe.load_max_over_mean", "moe.unused_experts"})
        EXPECT_EQ(found[i].at(key), alone[i].at(key)) << key;
      for (const char* key : {"seq_load_balancing_loss", "global_load_balancing_loss", "z_loss"})
        EXPECT_NEAR(found[i].at(key), alone[i].at(key), 1e-5 * alone[i].at(key).get<double>()) << key;
    }
  }
  fs::remove_all(run_folder_);
  expect_trained("sweep_moe", "train.train_iters=1");
  EXPECT_GE(lines().at(0).at("load_balancing_loss"), 0.9);
  EXPECT_FALSE(lines().at(0).contains("moe.expert_load")) << "only where asked for";
}

TEST_F(ParallelRuns, LossesAreThoseOfOneRank) {
  for (const char* name : {"tiny", "tiny_gpt"}) {
    expect_trained(name, "");
    const auto losses = numbers("loss"), eval_losses = numbers("eval_loss"), norms = numbers("grad_norm");
    ASSERT_EQ(losses.size(), 10u);
    ASSERT_EQ(eval_losses.size(), 2u);
    for (const std::string& layout : {"--ranks 4" + tp2 + pp2, "--ranks 4" + tp2 + zero + "optim_grads_params"}) {
      expect_trained(name, layout);
      expect_near(numbers("loss"), losses, name + layout);
      expect_near(numbers("eval_loss"), eval_losses, name + layout);
      expect_near(numbers("grad_norm"), norms, name + layout);
    }
  }
  const std::string log = slurp(run_folder_ / "log.txt");
  EXPECT_EQ(count(log, "4 ranks: tp 2 x pp 1 x dp 2, optim_grads_params"), 1u) << log;
  EXPECT_EQ(count(log, "step 10/10 |"), 1u) << log;
}

TEST_F(ParallelRuns, SequencesOverRanks) {
  const std::string gathered = " dist.cp_comm_type=all_gather", heads = " dist.cp_comm_type=a2a";
  for (const char* name : {"tiny", "tiny_gpt"}) {
    expect_trained(name, "");
    const auto losses = numbers("loss"), eval_losses = numbers("eval_loss"), norms = numbers("grad_norm");
    const auto tokens = numbers("tokens");
    for (const std::string& layout : {"--ranks 2" + cp2, "--ranks 4" + cp2 + tp2, "--ranks 4" + cp2 + pp2 + gathered,
                                      "--ranks 2" + cp2 + heads, "--ranks 4" + cp2 + zero + "optim_grads_params"}) {
      expect_trained(name, layout);
      expect_near(numbers("loss"), losses, name + layout);
      expect_near(numbers("eval_loss"), eval_losses, name + layout);
      expect_near(numbers("grad_norm"), norms, name + layout);
      EXPECT_EQ(numbers("tokens"), tokens) << "of all ranks, once";
    }
  }
  const std::string log = slurp(run_folder_ / "log.txt");
  EXPECT_EQ(count(log, "4 ranks: tp 1 x cp 2 (p2p) x pp 1 x dp 2, optim_grads_params"), 1u) << log;
}

// Dynamic context parallelism: each microbatch is on as many ranks as its documents need.
TEST_F(ParallelRuns, DynamicContextParallel) {
  const std::string packed =
      "dataset.reset_attention_mask=true dataset.eod_mask_loss=true train.micro_batch_size=1 train.seq_length=16 "
      "train.eval_iters=1 train.eval_interval=5 ";
  const std::string assigned = " dist.dynamic_context_parallel=true", cp4 = " dist.context_parallel_size=4";
  const std::string save = (folder_ / "saved").string();
  expect_trained("sweep_llama", packed);
  const auto losses = numbers("loss"), eval_losses = numbers("eval_loss"), norms = numbers("grad_norm");
  EXPECT_TRUE(column(run_folder_, "padding").empty());
  const auto expect_same = [&](const std::string& layout) {
    expect_near(numbers("loss"), losses, layout);
    expect_near(numbers("eval_loss"), eval_losses, layout);
    expect_near(numbers("grad_norm"), norms, layout);
  };
  for (const std::string& layout : {"--ranks 4" + cp4, "--ranks 4" + cp2 + " dataset.num_workers=3",
                                    "--ranks 4" + cp2 + pp2 + " dataset.num_workers=0"}) {
    expect_trained("sweep_llama", packed + layout + assigned);
    expect_same(layout);
    EXPECT_EQ(numbers("padding").size(), losses.size());
  }
  const std::string log = slurp(run_folder_ / "log.txt"), metrics = slurp(run_folder_ / "metrics.jsonl");
  EXPECT_EQ(count(log, ", dynamic) x pp "), 1u) << log;
  EXPECT_GT(count(metrics, "\"cp_degrees\":[[1,"), 0u) << metrics;
  // The run is stopped in between and resumed, to the last bit.
  const std::string layout = packed + "--ranks 4" + cp4 + assigned;
  expect_trained("sweep_llama", layout);
  const auto expected = column(run_folder_, "loss");
  const auto degrees = column(run_folder_, "padding");
  fs::remove_all(run_folder_);
  expect_trained("sweep_llama", layout + " train.train_iters=4 checkpoint.save=" + save);
  expect_trained("sweep_llama", layout + " train.train_iters=10 checkpoint.save=" + save + " checkpoint.load=" + save);
  EXPECT_EQ(column(run_folder_, "loss"), expected);
  EXPECT_EQ(column(run_folder_, "padding"), degrees);
  // A run whose steps grow.
  const std::string growing = packed + "train.train_iters=0 train.train_samples=64 train.rampup_batch_size=[4,4,24] ";
  fs::remove_all(run_folder_);
  expect_trained("sweep_llama", growing);
  const auto grown = numbers("loss");
  expect_trained("sweep_llama", growing + "--ranks 4" + cp2 + pp2 + assigned);
  expect_near(numbers("loss"), grown, "growing");
  const Outcome refused = train("sweep_llama", "--ranks 2" + cp2 + assigned);
  EXPECT_EQ(refused.status, 2);
  EXPECT_EQ(count(refused.output, "needs dataset.reset_attention_mask=true or dataset.kind=sft"), 1u) << refused.output;
}

// The first steps are those of a run whose batches stay small; later ones do not depend on the layout.
TEST_F(ParallelRuns, BatchesGrow) {
  const std::string constant =
      "train.micro_batch_size=1 train.train_iters=0 train.train_samples=40 scheduler.lr_warmup_iters=0 "
      "scheduler.lr_decay_style=constant model.vocab_size=512 ";
  const std::string growing = constant + "train.global_batch_size=8 train.rampup_batch_size=[2,2,12] checkpoint.save=" +
                              (folder_ / "saved").string() + " ";
  expect_trained("tiny", constant + "train.global_batch_size=2");
  const auto small = column(run_folder_, "loss");
  expect_trained("tiny", growing);
  const auto grown = column(run_folder_, "loss");
  const auto losses = numbers("loss"), eval_losses = numbers("eval_loss");
  EXPECT_EQ(column(run_folder_, "global_batch_size"), (std::vector<std::string>{"2", "2", "4", "6", "8", "8", "8"}));
  for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(grown[i], small[i]) << i;
  for (const std::string& layout : {"--ranks 2" + pp2, "--ranks 4" + tp2 + zero + "optim dataset.num_workers=1"}) {
    expect_trained("tiny", growing + layout);
    expect_near(numbers("loss"), losses, layout);
    expect_near(numbers("eval_loss"), eval_losses, layout);
  }
  const Outcome text = run_program(
      fmt::format("generate --model {} --prompt 'It was' --max-new-tokens 3", (folder_ / "saved").string()));
  EXPECT_EQ(text.status, 0) << text.output;
}

// The first step has the learning rate 0: what is saved are the initial weights.
TEST_F(ParallelRuns, CheckpointsDoNotDependOnTheLayout) {
  const std::string once =
      "train.train_iters=1 scheduler.lr_decay_iters=10 train.eval_iters=0 train.micro_batch_size=1 model.num_layers=4 ";
  const std::string tp4 = " dist.tensor_model_parallel_size=4";
  for (const char* name : {"tiny", "tiny_gpt"}) {
    const Weights expected = saved_weights(name, once);
    EXPECT_FALSE(saved_weights(name, once + "train.seed=7") == expected) << name;
    for (const std::string& layout :
         {"--ranks 2" + tp2, "--ranks 4" + tp4, "--ranks 2" + pp2, "--ranks 2" + zero + "optim",
          "--ranks 4" + zero + "optim_grads", "--ranks 8" + tp2 + pp2 + zero + "optim_grads_params",
          "--ranks 2" + tp2 + " dist.sequence_parallel=true",
          "--ranks 2" + pp2 + " dist.pipeline_schedule=zero_bubble_v",
          "--ranks 4" + pp2 + zero + "optim mixed_precision.precision=bf16"})
      EXPECT_TRUE(saved_weights(name, once + layout) == expected) << name << " " << layout;
  }
}

TEST_F(ParallelRuns, FrozenWeightsAreSavedOnce) {
  const std::string rest =
      "train.train_iters=1 scheduler.lr_decay_iters=10 train.eval_iters=0 model.freeze=[model.layers.0.*] ";
  const Weights expected = saved_weights("tiny", rest);
  EXPECT_TRUE(saved_weights("tiny", rest + "--ranks 2" + zero + "optim") == expected);
  EXPECT_TRUE(saved_weights("tiny", rest + "--ranks 2" + pp2) == expected);
}

TEST_F(ParallelRuns, TheTextDoesNotDependOnTheLayout) {
  for (const char* name : {"tiny", "tiny_gpt"}) {
    const std::string save = (folder_ / name).string();
    expect_trained(name, fmt::format("checkpoint.save={} train.train_iters=3 train.eval_iters=0 model.vocab_size=512 "
                                     "model.init_method_std=0.3 model.max_position_embeddings=64 --ranks 4{}{}",
                                     save, tp2, pp2));
    const auto text = [&](const std::string& arguments) {
      const Outcome outcome =
          run_program(fmt::format("generate --model {} --prompt 'It was' --max-new-tokens 30 {}", save, arguments));
      EXPECT_EQ(outcome.status, 0) << outcome.output;
      return outcome.output;
    };
    const std::string alone = text("");
    EXPECT_GT(alone.size(), 20u);
    for (const std::string& layout : {"--ranks 2" + tp2, "--ranks 2" + pp2, "--ranks 4" + tp2 + pp2})
      EXPECT_EQ(text(layout), alone) << name << layout;
    const std::string drawn = " --temperature 1 --seed 5 ";
    EXPECT_EQ(text("--ranks 4" + tp2 + pp2 + drawn), text(drawn));
    EXPECT_NE(text(drawn), alone);
  }
}

// Losses, checkpoints and text of a model with expert parallelism.
TEST_F(ParallelRuns, ExpertsOnOtherRanks) {
  const std::string ep2 = " dist.expert_model_parallel_size=2", ep4 = " dist.expert_model_parallel_size=4",
                    etp1 = " dist.expert_tensor_parallel_size=1";
  const std::string save = (folder_ / "saved").string();
  const std::string some = fmt::format(
      "checkpoint.save={} train.train_iters=3 train.eval_iters=1 model.vocab_size=512 model.init_method_std=0.3 "
      "train.micro_batch_size=1 ",
      save);
  expect_trained("tiny_mixtral", some);
  const auto losses = numbers("loss"), norms = numbers("grad_norm");
  for (const std::string& layout :
       {"--ranks 4" + ep4 + zero + "optim", "--ranks 4" + tp2 + ep2 + " model.moe.token_dispatcher_type=alltoall",
        "--ranks 4" + tp2 + ep4 + etp1 + " dist.sequence_parallel=true" + zero + "optim_grads_params"}) {
    fs::remove_all(folder_ / "saved");
    expect_trained("tiny_mixtral", some + layout);
    expect_near(numbers("loss"), losses, layout);
    expect_near(numbers("grad_norm"), norms, layout);
  }
  const auto text = [&](const std::string& arguments) {
    const Outcome outcome =
        run_program(fmt::format("generate --model {} --prompt 'It was' --max-new-tokens 20 {}", save, arguments));
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    return outcome.output;
  };
  const std::string alone = text("");
  for (const std::string& layout : {"--ranks 2" + tp2, "--ranks 2" + tp2 + ep2 + etp1, "--ranks 2" + tp2 + etp1})
    EXPECT_EQ(text(layout), alone) << layout;
  const Outcome full =
      train("tiny_mixtral", "--ranks 4 train.micro_batch_size=1 model.moe.expert_rank_capacity_factor=1" + ep4);
  EXPECT_EQ(full.status, 2) << full.output;
  EXPECT_EQ(count(full.output, ": model.moe.expert_rank_capacity_factor=1: the experts of "), 1u) << full.output;
}

TEST_F(ParallelRuns, LayoutsThatCannotBeAreRefusedBeforeAnyRankStarts) {
  const auto expect_refused = [](const Outcome& outcome, const std::string& words) {
    EXPECT_EQ(outcome.status, 2) << outcome.output;
    EXPECT_NE(outcome.output.find(words), std::string::npos) << outcome.output;
    EXPECT_EQ(outcome.output.find("rank 0:"), std::string::npos) << outcome.output;
  };
  expect_refused(train("tiny", "--ranks 3" + tp2), "must divide the number of ranks, which is 3");
  expect_refused(train("tiny", "--ranks 3"), "train.global_batch_size");
  expect_refused(train("tiny", "--ranks 0"), "--ranks 0: must be from 1");
  expect_refused(train("tiny", tp2), "--ranks N");
  expect_refused(train("tiny", "--ranks 2 model.num_layers=3" + pp2), "3 layers cannot be split evenly");
  EXPECT_FALSE(fs::exists(run_folder_));
  expect_trained("tiny", fmt::format("checkpoint.save={} model.vocab_size=512", (folder_ / "saved").string()));
  const std::string generate = fmt::format("generate --model {} ", (folder_ / "saved").string());
  expect_refused(run_program(generate + "--ranks 4" + tp2), "4 ranks, but tensor x pipeline parallelism takes 2");
  expect_refused(run_program(generate + "--ranks 2" + cp2), "dist.context_parallel_size=2: sequences are shared");
  expect_refused(run_program(generate + "train.seed=2"), "only dist.key=value");
  expect_refused(train("tiny", "--ranks 2 train.seq_length=18" + cp2), "train.seq_length=18");
}

TEST_F(ParallelRuns, AFaultIsReportedOnceWithItsRank) {
  folder_.write("in the way", "x");
  const Outcome first =
      train("tiny", fmt::format("--ranks 4{} 'checkpoint.save={}'", tp2, (folder_ / "in the way").string()));
  EXPECT_EQ(first.status, 2) << first.output;
  EXPECT_EQ(count(first.output, "rank 0: checkpoint.save="), 1u) << first.output;
  EXPECT_EQ(count(first.output, "rank "), 1u) << first.output;

  const Outcome diverged = train("tiny", "--ranks 4" + tp2 + pp2 + " optimizer.lr=1e30 optimizer.clip_grad=0");
  EXPECT_EQ(diverged.status, 2) << diverged.output;
  EXPECT_EQ(count(diverged.output, "one that is not finite"), 1u) << diverged.output;
}

TEST_F(ParallelRuns, AnInterruptEndsAllRanksAfterTheSameStep) {
  const std::string run = run_folder_.string(), save = (folder_ / "saved").string();
  const Outcome outcome = run_program(fmt::format(
      "train {} run.dir={} checkpoint.save={} train.train_iters=1000000 train.eval_iters=0 --ranks 4{}{} & "
      "for i in $(seq 200); do [ -s {}/metrics.jsonl ] && break; sleep 0.05; done; kill -INT $!; wait $!; echo status "
      "$?",
      config("tiny"), run, save, tp2, pp2, run));
  EXPECT_EQ(count(outcome.output, "stopped on request after step "), 1u) << outcome.output.substr(0, 2000);
  EXPECT_EQ(count(outcome.output, "status 0"), 1u);
  EXPECT_EQ(Checkpoint(save).step(), static_cast<std::int64_t>(column(run_folder_, "loss").size()));
}

}  // namespace
}  // namespace tera::test
