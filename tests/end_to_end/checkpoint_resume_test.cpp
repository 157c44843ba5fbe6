// What a run loads from a checkpoint, what it leaves on the disk, and what it refuses.

#include <algorithm>
#include <cstdlib>

#include "tests/end_to_end/checkpoint_runs.h"
#include "tests/support/expect_error.h"
#include "tests/support/paths.h"

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
  void edit_manifest(const std::string& step, const std::string& from, const std::string& to) const {
    const fs::path file = folder_ / step / "manifest.json";
    std::string content = slurp(file);
    const std::size_t at = content.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    std::ofstream(file, std::ios::binary) << seal_manifest(content.replace(at, from.size(), to));
  }
  std::string log(const std::string& run) const { return slurp(folder_ / run / "log.txt"); }
  void expect_logged(const std::string& run, const std::string& words) const {
    EXPECT_NE(log(run).find(words), std::string::npos) << words << "\n" << log(run);
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

// An old checkpoint was moved to a larger disk, and replaced by a link.
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
  expect_refused(train("tiny", "b", "checkpoint.load=" + path("saved")),
                 "'latest' names step_00000009, which is not complete; " + path("saved/step_00000003") + " is");
  expect_trained("tiny", "a", save(9));
  expect_logged("a",
                "passed over as not complete: step_00000009 ('latest' names it, and it is not there), "
                "step_00000006 (no manifest.json); the newest that is complete is " +
                    path("saved/step_00000003"));
  EXPECT_NE(slurp(folder_ / "a/log.txt").find("going on after step 3 from "), std::string::npos);
  EXPECT_EQ(column(folder_ / "a", "loss").size(), 9u);
  EXPECT_TRUE(tensors("saved") == nine);
}

// A checkpoint with a short or missing file counts as incomplete.
TEST_F(CheckpointResume, OneThatLacksAFileIsPassedOver) {
  expect_trained("tiny", "a", save(6) + "checkpoint.save_interval=3");
  fs::resize_file(folder_ / "saved/step_00000006/rank_00000.safetensors", 1000);
  expect_trained("tiny", "a", save(6));
  expect_logged("a", "step_00000006 (" + path("saved/step_00000006/rank_00000.safetensors") + " has 1000 bytes");
  expect_logged("a", "going on after step 3 from ");
  EXPECT_EQ(Checkpoint(folder_ / "saved").step(), 6);
}

TEST_F(CheckpointResume, NoneThatIsCompleteIsNoReasonToStartAnew) {
  expect_trained("tiny", "a", save(3));
  const std::string metrics = slurp(folder_ / "a/metrics.jsonl");
  fs::remove(folder_ / "saved/step_00000003/manifest.json");
  for (const char* also_gone : {"", "saved/latest"}) {
    if (*also_gone) fs::remove(folder_ / also_gone);
    expect_refused(train("tiny", "a", save(6)),
                   "none of its checkpoints is complete: step_00000003 (no manifest.json); "
                   "another folder as checkpoint.save starts anew");
  }
  EXPECT_EQ(slurp(folder_ / "a/metrics.jsonl"), metrics);
  fs::remove_all(folder_ / "saved/step_00000003");
  folder_.write("saved/latest", "step_00000003\n");
  expect_refused(train("tiny", "a", save(6)), "step_00000003 ('latest' names it, and it is not there)");
}

TEST_F(CheckpointResume, TheFolderOfTheRunGoesBeforeTheOneItCameFrom) {
  expect_trained("tiny", "a", save(5));
  const std::string again = save(8, "second") + "checkpoint.load=" + path("saved");
  expect_trained("tiny", "b", again);
  expect_trained("tiny", "b", again + " train.train_iters=9");
  EXPECT_EQ(column(folder_ / "b", "step"), (Names{"6", "7", "8", "9"}));
  expect_logged("b", "checkpoint.load=" + path("saved") + " is not used: checkpoint.save has step 8 already");
  EXPECT_EQ(Checkpoint(folder_ / "second").source().started_from,
            fs::canonical(folder_ / "saved/step_00000005").string());
  fs::remove_all(folder_ / "saved");
  expect_refused(train("tiny", "b", again), "checkpoint.load=" + path("saved") + ": there is no such folder");
}

TEST_F(CheckpointResume, LoadAndSaveMayBeTheSame) {
  const std::string both = save(4) + "checkpoint.load=" + path("saved/") + " train.train_iters=";
  expect_trained("tiny", "a", both + "2");
  expect_trained("tiny", "a", both + "4");
  EXPECT_EQ(column(folder_ / "a", "step"), (Names{"1", "2", "3", "4"}));
}

// Whatever ends the run, the same command line resumes it.
TEST_F(CheckpointResume, TheSameWordsGoOnAfterGoingBack) {
  expect_trained("tiny", "a", save(6) + "checkpoint.save_interval=2");
  const std::string back = "checkpoint.load=" + path("saved/step_00000002") + " optimizer.lr=1e-3";
  expect_trained("tiny", "b", save(4) + back);
  expect_trained("tiny", "b", save(8) + back);
  EXPECT_EQ(column(folder_ / "b", "step"), (Names{"3", "4", "5", "6", "7", "8"}));
  expect_logged("b", "is where this run was begun; it goes on from what it saved since");
  expect_logged("b", "going on after step 4 from ");
  expect_trained("tiny", "c", save(5) + "checkpoint.load=" + path("saved/step_00000004"));  // another one: back to that
  EXPECT_EQ(column(folder_ / "c", "step"), (Names{"5"}));
  expect_refused(train("tiny", "d", save(9) + "checkpoint.finetune=true " + back), "needs a folder of its own");
}

TEST_F(CheckpointResume, WhatIsDoneOtherwiseIsSaid) {
  expect_trained("tiny", "a", save(3));
  expect_trained("tiny", "a", save(4) + "--ranks 2 dist.tensor_model_parallel_size=2");
  EXPECT_EQ(log("a").find("not as when"), std::string::npos) << log("a");
  expect_trained("tiny", "a", save(5) + "optimizer.lr=2e-3 model.rotary_base=500 train.seq_length=8");
  expect_logged("a", "not as when " + path("saved/step_00000004") +
                         " was saved: model.rotary_base 10000 -> 500, optimizer.lr 0.003 -> 0.002, train.seq_length "
                         "16 -> 8");
  expect_trained("tiny", "a", save(6) + "mixed_precision.precision=bf16 train.seq_length=8 train.micro_batch_size=1");
  expect_logged("a", "not as when " + path("saved/step_00000005") +
                         " was saved: mixed_precision.precision fp32 -> bf16, model.rotary_base 500 -> 10000, "
                         "optimizer.lr 0.002 -> 0.003, train.micro_batch_size 2 -> 1");
}

// A command line trains the same on other ranks: the global batch is micro_batch_size x replicas of the run's
// beginning.
TEST_F(CheckpointResume, ABatchThatIsLeftOpenStays) {
  const std::string open = "train.global_batch_size=0 train.micro_batch_size=";
  expect_trained("tiny", "whole", save(12, "whole-saved") + open + "4");
  expect_trained("tiny", "a", save(6) + open + "4");
  expect_trained("tiny", "a", save(9) + open + "1 --ranks 2");
  expect_logged("a", "train.global_batch_size is not given: it stays 4, as when " + path("saved/step_00000006") +
                         " was saved; micro_batch_size x replicas would be 2");
  expect_logged("a", "was saved: train.micro_batch_size 4 -> 1");
  expect_trained("tiny", "a", save(12) + open + "1");
  expect_logged("a", "micro_batch_size x replicas would be 1");
  EXPECT_EQ(column(folder_ / "a", "lr"), column(folder_ / "whole", "lr"));
  EXPECT_EQ(column(folder_ / "a", "tokens"), column(folder_ / "whole", "tokens"));
  const std::vector<double> parts = numbers("a", "loss"), uninterrupted = numbers("whole", "loss");
  for (std::size_t i = 0; i < uninterrupted.size(); ++i) EXPECT_NEAR(parts.at(i), uninterrupted[i], 1e-5) << i;

  expect_trained("tiny", "a", save(13) + open + "4 --ranks 2");
  expect_logged("a", "train.global_batch_size is not given, and cannot stay 4, as when " + path("saved/step_00000012") +
                         " was saved: it is 8 now (train.global_batch_size=4: must be a multiple of");
  expect_logged("a", "; train.micro_batch_size=2 lets it stay");
  expect_logged("a",
                "was saved: scheduler.lr_decay_samples 120 -> 240, scheduler.lr_warmup_samples 12 -> 24, "
                "train.global_batch_size 4 -> 8, train.micro_batch_size 1 -> 4");
}

// A checkpoint of an earlier program describes an open batch by its layout alone.
TEST_F(CheckpointResume, ABatchThatWasLeftOpenIsThatOfTheRanksThatSaved) {
  const std::string open = "train.global_batch_size=0 ";
  expect_trained("tiny", "a", save(3) + open + "--ranks 4" + tp2);
  edit_manifest("saved/step_00000003", "global_batch_size: 4", "global_batch_size: 0");
  expect_trained("tiny", "a", save(4) + open);
  expect_logged("a", "train.global_batch_size is not given: it stays 4");
  EXPECT_EQ(log("a").find("not as when"), std::string::npos) << log("a");
}

// Resolved values are compared: other keys for the same values are no change, and the same keys may be one.
TEST_F(CheckpointResume, LengthsAreComparedInSamples) {
  expect_trained("tiny", "a", save(3));
  expect_trained("tiny", "a",
                 save(4) +
                     "scheduler.lr_decay_iters=0 scheduler.lr_decay_samples=120 scheduler.lr_warmup_iters=0 "
                     "scheduler.lr_warmup_samples=12");
  EXPECT_EQ(log("a").find("not as when"), std::string::npos) << log("a");
  expect_trained("tiny", "a", save(5) + "train.global_batch_size=2");
  expect_logged("a",
                "was saved: scheduler.lr_decay_samples 120 -> 60, scheduler.lr_warmup_samples 12 -> 6, "
                "train.global_batch_size 4 -> 2");
  expect_logged("a",
                "scheduler.lr_decay_iters=0 scheduler.lr_decay_samples=120 scheduler.lr_warmup_iters=0 "
                "scheduler.lr_warmup_samples=12 keeps those of before");
}

// Without a length of its own the decay is as long as the run, so that a longer run starts again with a high rate.
TEST_F(CheckpointResume, ALongerRunSaysWhatItsLearningRateDoes) {
  const std::string open = "scheduler.lr_decay_iters=0 ";
  const std::string advice = "scheduler.lr_decay_iters=20 ", samples = "train.train_iters=0 train.train_samples=";
  expect_trained("tiny", "a", save(20) + open);
  expect_trained("tiny", "a", save(20) + open);
  expect_logged("a", "a larger train.train_iters goes on, and the learning rate then falls over the longer run");
  expect_logged("a", advice + "with it leaves it at optimizer.min_lr=0");
  EXPECT_EQ(log("a").find("goes on at"), std::string::npos) << log("a");
  const std::string last = column(folder_ / "a", "lr").back();

  fs::copy(folder_ / "saved", folder_ / "kept", fs::copy_options::recursive);
  expect_trained("tiny", "a", save(40) + open);
  const double next = numbers("a", "lr").at(20);
  EXPECT_GT(next, 20 * std::stod(last));
  expect_logged("a", fmt::format("the learning rate goes on at {:.3g}, and not at 0, as the schedule of before would "
                                 "have it; it falls over the whole run, 160 samples, and fell over 80: {}keeps that",
                                 next, advice));
  expect_trained("tiny", "b", save(40, "kept") + advice);
  expect_logged("b", "the learning rate has fallen to optimizer.min_lr=0, and nothing is learned any more");
  EXPECT_EQ(log("b").find("goes on at"), std::string::npos) << log("b");
  EXPECT_EQ(numbers("b", "lr").at(0), 0);

  expect_trained("tiny", "c", save(0, "counted") + open + samples + "24");
  expect_trained("tiny", "c", save(0, "counted") + open + samples + "48");
  expect_logged("c",
                "falls over the whole run, 48 samples, and fell over 24: scheduler.lr_decay_samples=24 keeps that");
}

// Old checkpoints remain from a run that died before it removed them, or that kept more.
TEST_F(CheckpointResume, OldOnesAreRemovedAtTheStartToo) {
  expect_trained("tiny", "a", save(4) + "checkpoint.save_interval=1");
  folder_.write("saved/latest.next", "step_00000004\n");
  folder_.write("saved/latest", "step_00000003\n");
  expect_trained("tiny", "a", save(4) + "checkpoint.keep_last=2");
  expect_logged("a", "nothing is left to train: step 4 of 4 was reached before; a larger train.train_iters");
  EXPECT_EQ(names("saved"), (Names{"latest", "step_00000003", "step_00000004"}));
  EXPECT_EQ(slurp(folder_ / "saved/latest"), "step_00000004\n");
  expect_trained("tiny", "b", save(2) + "checkpoint.keep_last=1 checkpoint.load=" + path("saved/step_00000003"));
  EXPECT_EQ(names("saved"), (Names{"latest", "step_00000003", "step_00000004"}));
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

// How many steps are left follows from the samples that are left, whatever size the steps before had.
TEST_F(CheckpointResume, AnotherBatchTrainsOnAsManySamplesAsAsked) {
  const auto run = [&](const std::string& name, int samples, int batch) {
    expect_trained("tiny", name,
                   fmt::format("train.eval_iters=0 train.train_iters=0 train.train_samples={} "
                               "train.global_batch_size={} checkpoint.save={}",
                               samples, batch, path(name + "-saved")));
    return Checkpoint(folder_ / (name + "-saved")).source();
  };
  for (const auto& [batch, steps, consumed] : {std::array{2, 15, 40}, std::array{8, 7, 36}, std::array{4, 10, 40}}) {
    const std::string name = fmt::format("batch{}", batch);
    EXPECT_EQ(run(name, 20, 4).step, 5);
    const CheckpointSource end = run(name, 40, batch);
    EXPECT_EQ(end.step, steps) << batch;
    EXPECT_EQ(end.consumed_samples, consumed) << batch;
    EXPECT_EQ(column(folder_ / name, "loss").size(), static_cast<std::size_t>(steps));
    run(name, 40, batch);
    expect_logged(name, fmt::format("nothing is left to train: step {0} of {0} was reached before; a larger "
                                    "train.train_samples goes on",
                                    steps));
  }
}

// Samples of 16 tokens and of 8, four in a step.
TEST_F(CheckpointResume, TokensAreCountedWhateverTheLengthOfTheirSamples) {
  const std::string shorter = "train.seq_length=8 ";
  expect_trained("tiny", "a", save(2));
  expect_trained("tiny", "a", save(4) + shorter);
  expect_trained("tiny", "a", save(5));
  EXPECT_EQ(numbers("a", "tokens"), (std::vector<double>{64, 128, 160, 192, 256}));
  EXPECT_EQ(Checkpoint(folder_ / "saved").source().consumed_tokens, 256);

  expect_trained("tiny", "b", save(2, "old") + shorter);
  edit_manifest("old/step_00000002", "\"consumed_tokens\":64,", "");  // as an earlier program wrote it
  expect_trained("tiny", "b", save(3, "old"));
  EXPECT_EQ(numbers("b", "tokens"), (std::vector<double>{32, 64, 128}));
  edit_manifest("old/step_00000003", "\"consumed_tokens\":128,", "\"consumed_tokens\":9223372036854775807,");
  expect_refused(train("tiny", "b", save(4, "old")), "manifest.json: 'consumed_tokens' is 9223372036854775807");
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

// What is stored is converted to what the run asks for, in any layout: rounded once, or widened, which loses nothing.
TEST_F(CheckpointResume, TypesOfMomentsMayChange) {
  const std::string first = " optimizer.exp_avg_dtype=bf16", second = " optimizer.exp_avg_sq_dtype=bf16";
  const std::string load = " optimizer.adam_beta2=0.95 checkpoint.load=";
  const auto rounded = [](std::vector<float> values) {
    for (float& value : values) value = to_float(to_bf16(value));
    return values;
  };
  const auto expect_types = [&](const std::string& folder, DType of_first, DType of_second) {
    const Checkpoint checkpoint(folder_ / folder);
    for (const auto& [name, tensor] : checkpoint.manifest().tensors)
      EXPECT_EQ(tensor.dtype, name.starts_with("optimizer.exp_avg.")      ? of_first
                              : name.starts_with("optimizer.exp_avg_sq.") ? of_second
                                                                          : DType::f32)
          << folder << " " << name;
    EXPECT_EQ(run_program("inspect --verify " + path(folder)).status, 0);
  };
  expect_trained("tiny", "a", save(5) + "optimizer.adam_beta2=0.95");
  const Tensors wide = tensors("saved");
  Tensors narrow = wide;
  for (auto& [name, values] : narrow)
    if (name.starts_with("optimizer.exp_avg")) values = rounded(values);
  ASSERT_FALSE(narrow == wide);
  expect_types("saved", DType::f32, DType::f32);

  // Nothing is left to train: what was loaded is saved in another folder.
  expect_trained("tiny", "b", save(5, "narrow") + first + second + load + path("saved"));
  EXPECT_TRUE(tensors("narrow") == narrow);
  expect_types("narrow", DType::bf16, DType::bf16);
  expect_trained("tiny", "c", save(5, "mixed") + "--ranks 2" + tp2 + second + load + path("narrow"));
  EXPECT_TRUE(tensors("mixed") == narrow);
  expect_types("mixed", DType::f32, DType::bf16);
  expect_trained("tiny", "d", save(5, "back") + "--ranks 2" + zero + "optim" + load + path("mixed"));
  EXPECT_TRUE(tensors("back") == narrow);
  expect_types("back", DType::f32, DType::f32);

  const Outcome onwards = train("tiny", "e", save(8, "onwards") + first + second + load + path("saved"));
  EXPECT_EQ(onwards.status, 0) << onwards.output;
  EXPECT_NE(onwards.output.find("optimizer.exp_avg_dtype"), std::string::npos) << onwards.output;
}

// Padding rows of the vocabulary that are trained, too: as many as both have are kept.
TEST_F(CheckpointResume, VocabularyPaddingMayChange) {
  const std::string padded = " model.pad_vocab_in_softmax=true model.make_vocab_size_divisible_by=";
  const std::string name = "lm_head.weight.vocab_padding", moment = "optimizer.exp_avg." + name;
  expect_trained("tiny", "a", save(5) + padded + "32");  // 61 tokens and 3 padding rows
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
          "manifest.json: it is of another model than the config describes: model.num_layers is 2 there and 3 in the "
          "config; it has no tensor 'model.layers.2.input_layernorm.weight', 'model.layers.2.mlp.down_proj.weight', "
          "'model.layers.2.mlp.gate_proj.weight' and 6 more");
  refused("model.num_layers=1", "are not tensors of this model");
  refused("model.hidden_size=64 model.rotary_base=500",
          "describes: model.hidden_size is 32 there and 64 in the config, model.rotary_base is ");
  refused("model.hidden_size=64", "is [61,32], the model needs [61,64]");
  refused("train.seed=7", "train.seed=7, but " + path("saved") + "/step_00000004 was trained with train.seed=1234");
  refused("optimizer.optimizer=sgd optimizer.sgd_momentum=0.9", "lacks 'optimizer.momentum_buffer.lm_head.weight'");
  refused("optimizer.optimizer=sgd optimizer.sgd_momentum=0", "has the state 'optimizer.exp_avg.lm_head.weight'");
  refused("\"model.freeze=['*.mlp.*']\"", "with other weights frozen; checkpoint.load=" + path("saved/step_00000004") +
                                              " and checkpoint.finetune=true");
  expect_refused(train("tiny", "b", save(8) + "model.hidden_size=64"),
                 "because it is in checkpoint.save: another folder there starts anew");
  expect_refused(train("tiny", "b", "checkpoint.load=/no/such"), "/no/such: there is no such folder");
  expect_refused(train("tiny", "b", fmt::format("--ranks 2{} {}", tp2, load) + "model.num_layers=1"),
                 "are not tensors of this model");
}

// A command that follows the advice of a refusal is not refused again.
TEST_F(CheckpointResume, WhatARefusalAdvisesIsPossible) {
  expect_trained("tiny", "a", save(4));
  const std::string step = path("saved/step_00000004"),
                    finetune = "checkpoint.load=" + step + " and checkpoint.finetune=true";
  const std::string other_seed = "train.seed=7 ", other_optimizer = "optimizer.optimizer=sgd ";
  expect_refused(train("tiny", "b", save(8) + other_seed), "go on with that one, or take the weights alone: " +
                                                               finetune + ", with another folder as checkpoint.save");
  expect_refused(train("tiny", "b", save(8) + other_optimizer), finetune + ", with a checkpoint.save of its own");
  for (const std::string& other : {other_seed, other_optimizer})
    expect_trained("tiny", "c",
                   save(3, "tuned" + std::to_string(other.size())) + other + "checkpoint.load=" + step +
                       " checkpoint.finetune=true");
}

// The config in the checkpoint describes more than its tensors.
TEST_F(CheckpointResume, AnotherModelIsNamedByItsKeys) {
  const std::string seed = " train.seed=7 ", mtp = " model.mtp_num_layers=1 ";
  expect_trained("sweep_mla", "a", save(4) + seed + mtp);
  const std::string load = seed + "train.train_iters=8 checkpoint.load=" + path("saved") + " ";
  const auto refused = [&](const std::string& model, const std::string& keys, const std::string& words) {
    const Outcome outcome = train(model, "b", load + keys);
    expect_refused(outcome, words);
    EXPECT_FALSE(contains(outcome.output, "finetune")) << "which would not help: " << outcome.output;
  };
  refused("tiny_mixtral", "", "manifest.json: it is of a deepseek_v3, and the config describes a mixtral: model.");
  refused("tiny_mixtral", "checkpoint.finetune=false", "; it has no tensor 'model.layers.0.");
  const std::string other = "manifest.json: it is of another model than the config describes: ";
  refused("sweep_mla", mtp + "model.moe.num_experts=12",
          other + "model.moe.num_experts is 8 there and 12 in the config; ");
  refused("sweep_mla", mtp + "model.moe.router_enable_expert_bias=false",
          other + "model.moe.router_enable_expert_bias is true there and false in the config; ");
  refused("sweep_mla", mtp + "model.moe.shared_expert_intermediate_size=0",
          other + "model.moe.shared_expert_intermediate_size is 16 there and 0 in the config; ");
  refused("sweep_mla", "model.rotary_base=500 model.moe.num_experts=12",
          other +
              "model.moe.num_experts is 8 there and 12 in the config, model.rotary_base is 10000 there and 500 in the "
              "config, model.mtp_num_layers is 1 there and 0 in the config; ");
  expect_refused(train("sweep_mla", "b", load),
                 "made with model.mtp_num_layers=1, and the config has 0; checkpoint.load=" +
                     path("saved/step_00000004") + " and checkpoint.finetune=true");
}

TEST_F(CheckpointResume, DamageIsNoticed) {
  expect_trained("tiny", "a", save(4) + "--ranks 2" + tp2);
  const fs::path file = folder_ / "saved/step_00000004/rank_00001.safetensors";
  std::string content = slurp(file);
  content[content.size() / 2] = static_cast<char>(content[content.size() / 2] ^ 1);
  std::ofstream(file, std::ios::binary) << content;
  expect_refused(train("tiny", "b", save(8)), "rank_00001.safetensors: its checksum is ");
  expect_refused(train("tiny", "b", save(8)), "; the run goes on from it because it is in checkpoint.save");
  expect_trained("tiny", "b", save(8) + "checkpoint.verify=false");
  std::ofstream(file, std::ios::binary) << content.substr(1);
  expect_refused(train("tiny", "b", "checkpoint.load=" + file.parent_path().string()), "but the manifest says ");
  fs::remove(file);
  expect_refused(train("tiny", "b", "checkpoint.load=" + file.parent_path().string()), "No such file or directory");
}

TEST_F(CheckpointResume, ADamagedOneIsReportedWithTheOneBefore) {
  expect_trained("tiny", "a", save(4) + "checkpoint.save_interval=2");
  const fs::path file = folder_ / "saved/step_00000004/rank_00000.safetensors";
  std::string content = slurp(file);
  content.back() = static_cast<char>(content.back() ^ 1);
  std::ofstream(file, std::ios::binary) << content;
  const std::string back = "checkpoint.load=" + path("saved/step_00000002");
  expect_refused(train("tiny", "b", save(8)), "; the one before it is complete: " + back);
  expect_trained("tiny", "b", save(4) + back);
  EXPECT_NO_THROW(Checkpoint(folder_ / "saved").verify());
  std::ofstream(file, std::ios::binary)
      << content;  // now of the run that went back: the same words would go on from it
  expect_refused(train("tiny", "b", save(8) + back), path("saved/step_00000002") +
                                                         " before it is complete: the run goes on from that once " +
                                                         path("saved/step_00000004") + " is removed");
  fs::remove(file);
  expect_refused(train("tiny", "b", "checkpoint.load=" + path("saved/step_00000004")),
                 "No such file or directory; " + path("saved/step_00000002") + " is complete");
}

// The manifest is intact, but is not that of these files.
TEST_F(CheckpointResume, ManifestAndFilesMustAgree) {
  expect_trained("tiny", "a", save(2));
  const fs::path good = folder_ / "saved/step_00000002";
  fs::copy(good, folder_ / "copy", fs::copy_options::recursive);
  const Checkpoint checkpoint(good);
  const auto offset = [&](const char* name) {
    return fmt::format("\"offset\":{},", checkpoint.find(name)->pieces.at(0).offset);
  };
  const std::string one = offset("model.layers.0.input_layernorm.weight"),
                    other = offset("model.layers.1.input_layernorm.weight");
  edit_manifest("copy", one, other);
  expect_refused(train("tiny", "b", "train.train_iters=4 checkpoint.load=" + path("copy")),
                 "what its header says of 'model.layers.0.input_layernorm.weight' is not what the manifest says");
  EXPECT_EQ(run_program("inspect --verify " + path("copy")).status, 2);
  edit_manifest("copy", other, one);
  const std::string samples = fmt::format("\"consumed_samples\":{},", checkpoint.source().consumed_samples);
  const std::string tokens = fmt::format("\"consumed_tokens\":{},", checkpoint.source().consumed_tokens.value());
  edit_manifest("copy", tokens, "\"consumed_tokens\":9223372036854775807,");
  edit_manifest("copy", samples, "\"consumed_samples\":9223372036854775807,");
  expect_refused(train("tiny", "b", "train.train_iters=4 checkpoint.load=" + path("copy")),
                 "manifest.json: 'consumed_samples' is 9223372036854775807");
}

// The disk is too small for a second checkpoint, which shows before the save, or only when the files kept with it are
// copied: the first stays, and training can be resumed from it elsewhere.
TEST_F(CheckpointResume, AFullDiskLeavesTheLastGoodOne) {
  for (const std::string mode : {"false", "true"})
    for (const bool known : {true, false}) {
      const std::string name = mode + (known ? "-known" : "-late"), disk = path("disk" + name);
      fs::create_directories(disk);
      if (std::system(
              fmt::format("mount -t tmpfs -o size={} none {} 2>/dev/null", known ? "1200k" : "1750k", disk).c_str()) !=
          0)
        GTEST_SKIP() << "only root can mount a small file system";
      if (!known) folder_.write("a" + name + "/kernels.json", std::string(400 << 10, ' '));
      const Outcome outcome =
          train("tiny", "a" + name,
                "train.train_iters=20 train.eval_iters=0 model.vocab_size=512 checkpoint.save_interval=4 --ranks 2" +
                    tp2 + " checkpoint.async_save=" + mode + " checkpoint.save=" + disk);
      const Outcome again = train(
          "tiny", "b" + name, "model.vocab_size=512 train.eval_iters=0 train.train_iters=20 checkpoint.load=" + disk);
      const std::vector<std::string> left = names("disk" + name);
      EXPECT_EQ(std::system(fmt::format("umount {}", disk).c_str()), 0);
      EXPECT_EQ(outcome.status, 2) << outcome.output;
      const auto says = [&](const char* words) { return outcome.output.find(words) != std::string::npos; };
      if (known)
        EXPECT_TRUE(says("no space left for the checkpoint of step 8: it takes ") && says(" MiB are free"))
            << outcome.output;
      else
        EXPECT_TRUE(says("No space left on device")) << outcome.output;
      EXPECT_EQ(again.status, 0) << again.output;
      EXPECT_GE(left.size(), 2u);
      for (const std::string& each : left) EXPECT_EQ(each.find(".writing"), std::string::npos) << each;
    }
}

// Two runs that share the folder of the run exclude each other, too: the second leaves it alone.
TEST_F(CheckpointResume, TwoRunsCannotSaveInOneFolder) {
  const std::string run = path("a");
  const Outcome outcome = run_program(fmt::format(
      "train {} run.dir={} checkpoint.save={} train.train_iters=1000000 train.eval_iters=0 > /dev/null & "
      "for i in $(seq 400); do [ -s {}/metrics.jsonl ] && break; sleep 0.05; done; "
      "\"{}\" train {} run.dir={} checkpoint.save={}; echo second $?; kill -TERM $!; wait $!; echo first $?",
      config("tiny"), run, path("saved"), run, paths::program, config("tiny"), run, path("saved")));
  EXPECT_NE(outcome.output.find("another run is saving its checkpoints there"), std::string::npos) << outcome.output;
  EXPECT_NE(outcome.output.find("second 2"), std::string::npos) << outcome.output;
  EXPECT_NE(outcome.output.find("first 0"), std::string::npos) << outcome.output;
  EXPECT_EQ(names("a"), (Names{"config.resolved.yaml", "log.txt", "loss.svg", "metrics.jsonl"}));
  EXPECT_EQ(Checkpoint(folder_ / "saved").step(), static_cast<std::int64_t>(column(folder_ / "a", "step").size()));
  EXPECT_EQ(column(folder_ / "a", "step").at(0), "1");
}

}  // namespace
}  // namespace tera::test
