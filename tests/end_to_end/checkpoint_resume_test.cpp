// What a run takes from a checkpoint, what it leaves behind, and what it refuses.

#include <algorithm>
#include <cstdlib>

#include "tests/end_to_end/checkpoint_runs.h"

namespace tera::test {
namespace {

class CheckpointResume : public CheckpointRuns {
 protected:
  std::vector<std::string> names(const std::string& folder) const {
    std::vector<std::string> all;
    for (const auto& entry : fs::directory_iterator(folder_ / folder))
      if (entry.path().filename() != ".lock") all.push_back(entry.path().filename().string());
    std::sort(all.begin(), all.end());
    return all;
  }
  std::string save(int steps, const std::string& folder = "saved") const {
    return fmt::format("train.eval_iters=0 train.train_iters={} checkpoint.save={} ", steps, path(folder));
  }
};

using Names = std::vector<std::string>;

TEST_F(CheckpointResume, IntervalAndKeepLast) {
  expect_trained("tiny", "a", save(7) + "checkpoint.save_interval=2 checkpoint.keep_last=3");
  EXPECT_EQ(names("saved"), (Names{"latest", "step_00000004", "step_00000006", "step_00000007"}));
  EXPECT_EQ(slurp(folder_ / "saved/latest"), "step_00000007\n");
  for (const char* mode : {"true", "false"}) {
    expect_trained("tiny", "b",
                   save(8, mode) + "checkpoint.save_interval=2 checkpoint.keep_last=1 checkpoint.async_save=" + mode);
    EXPECT_EQ(names(mode), (Names{"latest", "step_00000008"}));
    EXPECT_NE(slurp(folder_ / "b/log.txt").find("durable at step 6: "), std::string::npos);
  }
  const Tensors a = tensors("true"), b = tensors("false");
  EXPECT_TRUE(a == b);
}

// An old one that somebody moved to a larger disk, and left a link to.
TEST_F(CheckpointResume, WhatALinkPointsToIsNotRemoved) {
  expect_trained("tiny", "a", save(2));
  fs::rename(folder_ / "saved/step_00000002", folder_ / "moved");
  fs::create_directory_symlink(folder_ / "moved", folder_ / "saved/step_00000002");
  expect_trained("tiny", "a", save(6) + "checkpoint.save_interval=1 checkpoint.keep_last=1");
  EXPECT_EQ(column(folder_ / "a", "loss").size(), 6u) << "it went on from it";
  EXPECT_EQ(names("saved"), (Names{"latest", "step_00000002", "step_00000006"}));
  EXPECT_NO_THROW(Checkpoint(folder_ / "moved").verify());
}

TEST_F(CheckpointResume, WhatWasSavedIsNotTrainedAgain) {
  expect_trained("tiny", "a", save(5));
  expect_trained("tiny", "a", save(5));  // nothing is left to do
  EXPECT_EQ(column(folder_ / "a", "loss").size(), 5u);
  EXPECT_NE(slurp(folder_ / "a/log.txt").find("nothing is left to train: step 5 of 5"), std::string::npos);
  expect_trained("tiny", "a", save(6));
  EXPECT_EQ(column(folder_ / "a", "loss").size(), 6u);
  const std::string log = slurp(folder_ / "a/log.txt");
  EXPECT_NE(log.find("going on after step 5 from "), std::string::npos) << log;
}

// An explicit step of the same folder goes before its newest one.
TEST_F(CheckpointResume, GoesBackWhenAsked) {
  expect_trained("tiny", "a", save(9) + "checkpoint.save_interval=3");
  const Tensors nine = tensors("saved");
  expect_trained("tiny", "b", save(4) + "checkpoint.load=" + path("saved/step_00000003"));
  EXPECT_EQ(column(folder_ / "b", "step"), (Names{"4"}));
  EXPECT_EQ(slurp(folder_ / "saved/latest"), "step_00000004\n");
  expect_trained("tiny", "b", save(9));
  EXPECT_TRUE(tensors("saved") == nine);
}

// Somebody removed the newest one, or its manifest: the run goes on from the one before, and does not start anew.
TEST_F(CheckpointResume, TheNewestCompleteOneIsTaken) {
  expect_trained("tiny", "a", save(9) + "checkpoint.save_interval=3");
  const Tensors nine = tensors("saved");
  fs::remove_all(folder_ / "saved/step_00000009");
  fs::remove(folder_ / "saved/step_00000006/manifest.json");
  expect_refused(train("tiny", "b", "checkpoint.load=" + path("saved")), "'latest' names step_00000009, which is not");
  expect_trained("tiny", "a", save(9));
  EXPECT_NE(slurp(folder_ / "a/log.txt").find("going on after step 3 from "), std::string::npos);
  EXPECT_EQ(column(folder_ / "a", "loss").size(), 9u);
  EXPECT_TRUE(tensors("saved") == nine);
}

TEST_F(CheckpointResume, TheFolderOfTheRunGoesBeforeTheOneItCameFrom) {
  expect_trained("tiny", "a", save(5));
  const std::string again = save(8, "second") + "checkpoint.load=" + path("saved");
  expect_trained("tiny", "b", again);
  expect_trained("tiny", "b", again + " train.train_iters=9");
  EXPECT_EQ(column(folder_ / "b", "step"), (Names{"6", "7", "8", "9"}));
}

// Position in the data and learning rate follow from the samples consumed, not from the steps.
TEST_F(CheckpointResume, BatchesThatGrowGoOnGrowing) {
  const auto run = [&](const std::string& name, int samples) {
    const Outcome outcome = run_program(
        fmt::format("train {} run.dir={} checkpoint.save={} train.train_iters=0 train.train_samples={} "
                    "train.eval_iters=0 train.micro_batch_size=1 \"train.rampup_batch_size=[1,1,24]\" "
                    "scheduler.lr_warmup_iters=0 scheduler.lr_warmup_samples=9 scheduler.lr_decay_samples=60",
                    config("tiny"), path(name), path(name + "-saved"), samples));
    EXPECT_EQ(outcome.status, 0) << outcome.output;
  };
  run("whole", 44);
  run("parts", 20);
  run("parts", 44);
  for (const char* key : {"step", "loss", "lr", "tokens"})
    EXPECT_EQ(column(folder_ / "parts", key), column(folder_ / "whole", key)) << key;
  EXPECT_GT(column(folder_ / "whole", "loss").size(), 12u);
  EXPECT_TRUE(tensors("parts-saved") == tensors("whole-saved"));
}

TEST_F(CheckpointResume, FinetuneTakesTheWeightsAlone) {
  expect_trained("tiny", "a", save(5));
  expect_trained("tiny", "b",
                 save(3, "tuned") +
                     "checkpoint.finetune=true optimizer.optimizer=sgd train.seed=7 checkpoint.load=" + path("saved"));
  EXPECT_EQ(column(folder_ / "b", "step"), (Names{"1", "2", "3"}));
  // The first step has the learning rate 0 and another batch: only the weights can make the loss differ from anew.
  expect_trained("tiny", "c", save(3, "anew") + "optimizer.optimizer=sgd train.seed=7");
  EXPECT_NE(column(folder_ / "b", "loss")[0], column(folder_ / "c", "loss")[0]);
  expect_refused(train("tiny", "d", save(3, "none") + "checkpoint.finetune=true"),
                 "checkpoint.load, which is not given");
}

TEST_F(CheckpointResume, PrecisionMayChange) {
  expect_trained("tiny", "a", save(5) + "mixed_precision.precision=bf16");
  const Tensors half = tensors("saved");
  expect_trained("tiny", "b", save(5, "full") + "mixed_precision.precision=fp32 checkpoint.load=" + path("saved"));
  const Tensors full = tensors("full");
  EXPECT_TRUE(full.at("model.norm.weight") == half.at("optimizer.master.model.norm.weight"));
  EXPECT_TRUE(full.at("optimizer.exp_avg.model.norm.weight") == half.at("optimizer.exp_avg.model.norm.weight"));
  expect_trained("tiny", "c", save(5, "back") + "mixed_precision.precision=bf16 checkpoint.load=" + path("full"));
  EXPECT_TRUE(tensors("back") == half);
}

// Rows behind the vocabulary that are trained too: as many as both have are kept.
TEST_F(CheckpointResume, VocabularyPaddingMayChange) {
  const std::string padded = " model.pad_vocab_in_softmax=true model.make_vocab_size_divisible_by=";
  const std::string name = "lm_head.weight.vocab_padding", moment = "optimizer.exp_avg." + name;
  expect_trained("tiny", "a", save(5) + padded + "32");  // 61 words and 3 more
  const Tensors few = tensors("saved");
  ASSERT_EQ(few.at(name).size(), 3u * 32);
  expect_trained("tiny", "b", save(5, "many") + padded + "128 --ranks 2" + tp2 + " checkpoint.load=" + path("saved"));
  const Tensors many = tensors("many");
  ASSERT_EQ(many.at(name).size(), (256u - 61) * 32);
  for (const std::string& each : {name, moment})
    EXPECT_TRUE(std::equal(few.at(each).begin(), few.at(each).end(), many.at(each).begin())) << each;
  EXPECT_EQ(many.at(moment).back(), 0);
  expect_trained("tiny", "c", save(5, "back") + padded + "32 checkpoint.load=" + path("many"));
  EXPECT_TRUE(tensors("back") == few);
  expect_trained("tiny", "d", save(6, "none") + "checkpoint.load=" + path("saved"));
}

TEST_F(CheckpointResume, ASignalSavesAfterTheStep) {
  for (const std::string name : {"TERM", "USR1"}) {
    const std::string run = path(name);
    const Outcome outcome = run_program(fmt::format(
        "train {} run.dir={} checkpoint.save={} train.train_iters=1000000 train.eval_iters=0 --ranks 2{} & "
        "for i in $(seq 400); do [ -s {}/metrics.jsonl ] && break; sleep 0.05; done; kill -{} $!; wait $!; echo status "
        "$?",
        config("tiny"), run, path("saved" + name), tp2, run, name));
    EXPECT_NE(outcome.output.find("status 0"), std::string::npos) << outcome.output.substr(0, 2000);
    EXPECT_EQ(Checkpoint(folder_ / ("saved" + name)).step(),
              static_cast<std::int64_t>(column(folder_ / name, "loss").size()));
  }
}

TEST_F(CheckpointResume, WhatDoesNotSuitIsRefused) {
  expect_trained("tiny", "a", save(4));
  const std::string load = "train.train_iters=8 checkpoint.load=" + path("saved") + " ";
  const auto refused = [&](const std::string& arguments, const std::string& words) {
    expect_refused(train("tiny", "b", load + arguments), words);
  };
  refused("model.num_layers=3",
          "has no tensor 'model.layers.2.input_layernorm.weight', 'model.layers.2.mlp.down_proj.weight', "
          "'model.layers.2.mlp.gate_proj.weight' and 6 more; it is of another model");
  refused("model.num_layers=1", "is not a tensor of this model");
  refused("model.hidden_size=64", "is [61,32], the model needs [61,64]");
  refused("train.seed=7", "train.seed=7, but " + path("saved") + "/step_00000004 was trained with train.seed=1234");
  refused("optimizer.optimizer=sgd optimizer.sgd_momentum=0.9", "lacks 'optimizer.momentum_buffer.lm_head.weight'");
  refused("optimizer.optimizer=sgd optimizer.sgd_momentum=0", "has the state 'optimizer.exp_avg.lm_head.weight'");
  refused("\"model.freeze=['*.mlp.*']\"",
          "with other weights frozen; checkpoint.finetune=true takes the weights alone");
  expect_refused(train("tiny", "b", save(8) + "model.hidden_size=64"),
                 "because it is in checkpoint.save: another folder there starts anew");
  expect_refused(train("tiny", "b", "checkpoint.load=/no/such"), "/no/such: there is no such folder");
  expect_refused(train("tiny", "b", fmt::format("--ranks 2{} {}", tp2, load) + "model.num_layers=1"),
                 "is not a tensor of this model");
}

TEST_F(CheckpointResume, DamageIsNoticed) {
  expect_trained("tiny", "a", save(4) + "--ranks 2" + tp2);
  const fs::path file = folder_ / "saved/step_00000004/rank_00001.safetensors";
  std::string content = slurp(file);
  content[content.size() / 2] = static_cast<char>(content[content.size() / 2] ^ 1);
  std::ofstream(file, std::ios::binary) << content;
  expect_refused(train("tiny", "b", save(8)), "rank_00001.safetensors: its checksum is ");
  expect_trained("tiny", "b", save(8) + "checkpoint.verify=false");
  std::ofstream(file, std::ios::binary) << content.substr(1);
  expect_refused(train("tiny", "b", "checkpoint.load=" + file.parent_path().string()), "but the manifest says ");
  fs::remove(file);
  expect_refused(train("tiny", "b", "checkpoint.load=" + file.parent_path().string()), "No such file or directory");
}

// The disk is too small for a second checkpoint: the first stays, and training can go on from it elsewhere.
TEST_F(CheckpointResume, AFullDiskLeavesTheLastGoodOne) {
  for (const std::string mode : {"false", "true"}) {
    const std::string disk = path("disk" + mode);
    fs::create_directories(disk);
    if (std::system(fmt::format("mount -t tmpfs -o size=1200k none {} 2>/dev/null", disk).c_str()) != 0)
      GTEST_SKIP() << "only root can mount a small file system";
    const Outcome outcome =
        train("tiny", "a" + mode,
              "train.train_iters=20 train.eval_iters=0 model.vocab_size=512 checkpoint.save_interval=4 --ranks 2" +
                  tp2 + " checkpoint.async_save=" + mode + " checkpoint.save=" + disk);
    const Outcome again = train("tiny", "b" + mode,
                                "model.vocab_size=512 train.eval_iters=0 train.train_iters=20 checkpoint.load=" + disk);
    const std::vector<std::string> left = names("disk" + mode);
    EXPECT_EQ(std::system(fmt::format("umount {}", disk).c_str()), 0);
    EXPECT_EQ(outcome.status, 2) << outcome.output;
    EXPECT_NE(outcome.output.find("No space left on device"), std::string::npos) << outcome.output;
    EXPECT_EQ(again.status, 0) << again.output;
    EXPECT_GE(left.size(), 2u);
    for (const std::string& name : left) EXPECT_EQ(name.find(".writing"), std::string::npos) << name;
  }
}

TEST_F(CheckpointResume, TwoRunsCannotSaveInOneFolder) {
  const std::string run = path("a");
  const Outcome outcome = run_program(fmt::format(
      "train {} run.dir={} checkpoint.save={} train.train_iters=1000000 train.eval_iters=0 > /dev/null & "
      "for i in $(seq 400); do [ -s {}/metrics.jsonl ] && break; sleep 0.05; done; "
      "\"{}\" train {} run.dir={} checkpoint.save={}; echo second $?; kill -TERM $!; wait $!; echo first $?",
      config("tiny"), run, path("saved"), run, TERA_PROGRAM, config("tiny"), path("b"), path("saved")));
  EXPECT_NE(outcome.output.find("another run is saving its checkpoints there"), std::string::npos) << outcome.output;
  EXPECT_NE(outcome.output.find("second 2"), std::string::npos) << outcome.output;
  EXPECT_NE(outcome.output.find("first 0"), std::string::npos) << outcome.output;
}

}  // namespace
}  // namespace tera::test
