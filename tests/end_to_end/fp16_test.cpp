// fp16 with a loss scale: it trains as bf16 does, and steps that overflow change nothing but the scale.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/end_to_end/checkpoint_runs.h"
#include "tests/end_to_end/training_run.h"
#include "tests/support/expect_error.h"

namespace tera::test {
namespace {

const Overrides fp16{"mixed_precision.precision=fp16"};
const Overrides longer{"train.train_iters=60", "optimizer.lr=2e-3", "train.eval_iters=0"};

Overrides initial_scale(int power) {
  return {"mixed_precision.initial_loss_scale=" + std::to_string(std::int64_t{1} << power)};
}

TEST(Fp16, FollowsBf16) {
  for (const char* config : {"tiny", "tiny_gpt"}) {
    const RunRecord bf16 = train_once(config, longer + Overrides{"mixed_precision.precision=bf16"}),
                    half = train_once(config, longer + fp16 + initial_scale(12));
    ASSERT_EQ(half.loss.size(), bf16.loss.size());
    for (std::size_t i = 0; i < bf16.loss.size(); ++i)
      EXPECT_NEAR(half.loss[i], bf16.loss[i], 0.01 * bf16.loss[i]) << config << ", step " << i + 1;
    EXPECT_LT(half.loss.back(), half.loss[0] - 0.2) << "there is nothing to follow";
    EXPECT_EQ(std::count(half.skipped.begin(), half.skipped.end(), true), 0) << config;
    EXPECT_EQ(half.loss_scale, std::vector<double>(60, 4096)) << config;
  }
}

// fp16 has three bits more than bf16: without them the scale would be of no use.
TEST(Fp16, IsNearerToFp32ThanBf16) {
  const auto distance = [exact = train_once("tiny", longer).loss](const RunRecord& run) {
    double sum = 0;
    for (std::size_t i = 0; i < exact.size(); ++i) sum += std::abs(run.loss[i] / exact[i] - 1);
    return sum;
  };
  EXPECT_LT(distance(train_once("tiny", longer + fp16 + initial_scale(12))),
            0.5 * distance(train_once("tiny", longer + Overrides{"mixed_precision.precision=bf16"})));
}

// A power of two changes no bit, as long as nothing leaves fp16's range: one that is constant, or that changes late.
TEST(Fp16, AConstantScaleGivesTheSameBits) {
  const RunRecord dynamic = train_once("tiny", fp16 + initial_scale(10));
  const RunRecord constant = train_once("tiny", fp16 + Overrides{"mixed_precision.loss_scale=1024"});
  EXPECT_EQ(dynamic, constant);
  EXPECT_EQ(constant.loss_scale, std::vector<double>(10, 1024));
}

TEST(Fp16, AConstantScaleThatOverflowsEndsTheRun) {
  const std::string message =
      message_of<UserError>([] { train_once("tiny", fp16 + Overrides{"mixed_precision.loss_scale=1e30"}); });
  EXPECT_TRUE(contains(message, "step 1: the gradients overflow fp16 with mixed_precision.loss_scale=1e+30"))
      << message;
}

// Megatron's defaults: the scale begins at 2^32, one overflow is tolerated, then each halves it until nothing
// overflows.
TEST(Fp16, FindsItsScale) {
  const RunRecord run = train_once("tiny", fp16 + Overrides{"train.train_iters=40", "optimizer.lr=1e-2"});
  int skips = 0;
  for (std::size_t i = 0; i < run.skipped.size(); ++i) {
    skips += run.skipped[i] ? 1 : 0;
    EXPECT_TRUE(i >= 10 || run.skipped[i]) << "step " << i + 1;
    EXPECT_EQ(run.loss_scale[i], std::exp2(33 - skips)) << "step " << i + 1;
    EXPECT_EQ(run.skipped[i], !std::isfinite(run.grad_norm[i])) << "step " << i + 1;
    EXPECT_TRUE(std::isfinite(run.loss[i])) << "step " << i + 1;
  }
  EXPECT_LT(skips, 25);
  EXPECT_LT(run.loss.back(), run.loss[0] - 0.1);
}

// A loss scale with a window of 4 grows until it overflows, again and again, and training goes on.
TEST(Fp16, GrowsAndFallsBack) {
  const RunRecord run =
      train_once("tiny", longer + fp16 + initial_scale(14) +
                             Overrides{"mixed_precision.loss_scale_window=4", "mixed_precision.hysteresis=1"});
  const auto skips = std::count(run.skipped.begin(), run.skipped.end(), true);
  EXPECT_GE(skips, 2);
  EXPECT_LE(skips, 20);
  double scale = 16384;
  int good = 0;
  for (std::size_t i = 0; i < run.skipped.size(); ++i) {
    good = run.skipped[i] ? 0 : good + 1;
    if (run.skipped[i]) scale /= 2;
    if (good == 4) {
      good = 0;
      scale *= 2;
    }
    EXPECT_EQ(run.loss_scale[i], scale) << "step " << i + 1;
  }
  EXPECT_LT(run.loss.back(), run.loss[0] - 0.2);
}

// The schedule counts updates only; data goes on.
TEST(Fp16, SkippedStepsDoNotCountInTheSchedule) {
  const Overrides run = fp16 + initial_scale(32) +
                        Overrides{"train.train_iters=40",
                                  "optimizer.lr=1e-2",
                                  "optimizer.min_lr=0",
                                  "scheduler.lr_decay_style=linear",
                                  "scheduler.lr_warmup_iters=4",
                                  "scheduler.lr_decay_iters=40",
                                  "mixed_precision.loss_scale_window=6",
                                  "train.eval_interval=7",
                                  "train.eval_iters=1"};
  const RunRecord late = train_once("tiny", run, {}, Reporting::late);
  double updates = 0;
  int skips_later = 0;
  for (std::size_t i = 0; i < late.lr.size(); ++i) {
    EXPECT_NEAR(late.lr[i], updates <= 4 ? 0.01 * updates / 4 : 0.01 * (40 - updates) / 36, 1e-12) << "step " << i + 1;
    if (late.skipped[i] && updates > 0) ++skips_later;
    if (!late.skipped[i]) ++updates;
  }
  EXPECT_GT(skips_later, 0) << "a window of 6 brings overflows among good steps";
  const RunRecord at_once = train_once("tiny", run, {}, Reporting::at_once);  // norms of skipped steps may be NaN
  EXPECT_EQ(late.lr, at_once.lr);
  EXPECT_EQ(late.loss, at_once.loss);
  EXPECT_EQ(late.eval_loss, at_once.eval_loss);
  EXPECT_EQ(late.loss_scale, at_once.loss_scale);
  EXPECT_TRUE(late.weights == at_once.weights);
}

// Batches without a target that counts, so without any gradient.
void load_nothing(TrainingStep& step, const tera::Setup& setup) {
  const auto rows = static_cast<std::size_t>(setup.batch.micro_batch * setup.batch.seq_length);
  std::vector<std::int32_t> tokens(rows), targets(rows, -1), positions(rows);
  std::vector<std::int64_t> row_ids(rows);
  for (std::int64_t i = 0; i < setup.batch.num_microbatches; ++i)
    step.load(i, {tokens, targets, positions, row_ids}, 1);
}

// Steps without the trainer: a skipped step changes no state, and none of its gradients get into the next one.
TEST(Fp16, ASkippedStepChangesNoBit) {
  for (const char* optimizer : {"adam", "sgd"}) {
    const tera::Setup setup = load_setup(
        "tiny", fp16 + initial_scale(10) +
                    Overrides{std::string("optimizer.optimizer=") + optimizer, "mixed_precision.hysteresis=1"});
    Backend backend = make_backend(setup.config.dist);
    Ops& ops = *backend.ops;
    TrainingStep step(setup);
    step.bind(backend);
    const auto everything = [&] {  // weights, main weights, moments
      std::vector<std::vector<std::byte>> all;
      for (const StatePiece& piece : step.state().kept()) ops.to_host(piece.data, all.emplace_back(piece.data.bytes()));
      return all;
    };
    const auto run_step = [&](float broken) {
      for (const Bucket& bucket : step.params().buckets()) {
        const std::vector<float> grads(static_cast<std::size_t>(count(bucket.local_grad.shape)), 0.5f * 1024);
        ops.from_host(std::as_bytes(std::span(grads)), bucket.local_grad);
      }
      const Tensor& some = step.params().by_name().front()->grad;
      if (broken != 0)
        ops.from_host(std::as_bytes(std::span(&broken, 1)), some.view(shape(count(some.shape))).rows(5, 6));
      step.update(1e-2);
      return LossScaling::state_of(step.result(step.read_back()));
    };
    const auto first = everything();
    EXPECT_EQ(run_step(0).skipped, 0);
    const auto second = everything();
    EXPECT_NE(first, second);
    constexpr float infinity = std::numeric_limits<float>::infinity();
    double scale = 1024;
    for (const float broken : {infinity, -infinity, std::nanf("")}) {
      const ScaleReading result = run_step(broken);
      EXPECT_EQ(result.skipped, 1);
      EXPECT_EQ(result.scale, scale /= 2);
      EXPECT_EQ(result.updates, 1);
      EXPECT_EQ(step.scaling().updates(), 1);
      EXPECT_TRUE(everything() == second) << broken;
      load_nothing(step, setup);
      step.forward_backward();
      for (const Bucket& bucket : step.params().buckets())
        EXPECT_TRUE(std::ranges::all_of(download(ops, bucket.local_grad), [](float g) { return g == 0; }));
    }
    EXPECT_EQ(run_step(0).skipped, 0);
    EXPECT_EQ(step.scaling().updates(), 2);
    EXPECT_NE(everything(), second);
  }
}

class Fp16Program : public CheckpointRuns {};

// A run saved between overflows, in the middle of a window, resumes with the losses, scales and tensors of an
// uninterrupted run.
TEST_F(Fp16Program, ResumeIsBitwise) {
  const std::string half =
      "mixed_precision.precision=fp16 mixed_precision.initial_loss_scale=262144 mixed_precision.loss_scale_window=5 "
      "train.eval_iters=0 ";
  const auto save = [&](const char* folder, int steps) {
    return half + fmt::format("train.train_iters={} checkpoint.save={} ", steps, path(folder));
  };
  for (const char* name : {"tp1", "dp2zero1"}) {
    const std::string layout = on(layouts.at(name)), run = name;
    expect_trained("tiny", run + "whole", layout + " " + save((run + "whole-saved").c_str(), 24));
    for (const int steps : {2, 9, 16, 24})
      expect_trained("tiny", run + "parts", layout + " " + save((run + "parts-saved").c_str(), steps));
    for (const char* key : {"loss", "grad_norm", "lr", "loss_scale", "skipped"})
      EXPECT_EQ(column(folder_ / (run + "whole"), key), column(folder_ / (run + "parts"), key)) << key;
    const std::vector<std::string> skipped = column(folder_ / (run + "whole"), "skipped");
    EXPECT_GT(std::count(skipped.begin(), skipped.end(), "true"), 1);
    EXPECT_TRUE(tensors(run + "whole-saved") == tensors(run + "parts-saved"));
    const Checkpoint uninterrupted(folder_ / (run + "whole-saved")), parts(folder_ / (run + "parts-saved"));
    ASSERT_TRUE(uninterrupted.source().loss_scale);
    EXPECT_TRUE(uninterrupted.source().loss_scale == parts.source().loss_scale);
    EXPECT_EQ(uninterrupted.source().updates, parts.source().updates);
    EXPECT_EQ(uninterrupted.source().updates, 24 - std::count(skipped.begin(), skipped.end(), "true"));
    EXPECT_EQ(uninterrupted.source().skipped_samples, parts.source().skipped_samples);
    EXPECT_EQ(uninterrupted.source().skipped_samples, 4 * std::count(skipped.begin(), skipped.end(), "true"));
  }
}

TEST_F(Fp16Program, ReportsWhatItSkips) {
  const Outcome outcome =
      train("tiny", "a", "mixed_precision.precision=fp16 train.train_iters=40 logger.log_interval=10");
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  for (const char* words : {" | loss scale 4.29497e+09 | 1 skipped", " | 9 skipped", " steps were skipped, as their"})
    EXPECT_NE(outcome.output.find(words), std::string::npos) << words << "\n" << outcome.output;
  const Outcome low = train("tiny", "b", "mixed_precision.precision=fp16 mixed_precision.min_loss_scale=4294967296");
  EXPECT_EQ(low.status, 0) << low.output;
  const std::string warning = "the gradients overflow at the smallest loss scale, 4294967296, too";
  EXPECT_NE(low.output.find(warning), std::string::npos) << low.output;
  EXPECT_EQ(low.output.find(warning), low.output.rfind(warning)) << low.output;
}

// A scale that may not fall below one at which everything overflows: the run ends.
TEST_F(Fp16Program, OverflowsForEverEndTheRun) {
  const std::string endless =
      "mixed_precision.precision=fp16 mixed_precision.min_loss_scale=4294967296 train.eval_iters=0 train.train_iters=";
  const Outcome enough = train("tiny", "a", endless + "50");  // nobody knows that the first step was at the floor
  EXPECT_EQ(enough.status, 0) << enough.output;
  for (const char* ranks : {"", " --ranks 2"}) {
    const Outcome outcome = train("tiny", "b", endless + "1000" + ranks);
    EXPECT_EQ(outcome.status, 2) << outcome.output;
    const std::string warning =
        "step 51: the gradients have overflowed fp16 for 50 steps in a row at the smallest loss";
    EXPECT_NE(outcome.output.find(warning), std::string::npos) << outcome.output;
    EXPECT_EQ(outcome.output.find(warning), outcome.output.rfind(warning)) << outcome.output;
  }
}

// Resuming with another precision: the scale starts from its initial value where the checkpoint has none.
TEST_F(Fp16Program, ChangesOfPrecision) {
  const std::string half = "mixed_precision.precision=fp16 mixed_precision.initial_loss_scale=2048 ",
                    brain = "mixed_precision.precision=bf16 ",
                    save = "train.eval_iters=0 checkpoint.save=" + path("saved") + " train.train_iters=";
  expect_trained("tiny", "a", brain + save + "3");
  EXPECT_FALSE(Checkpoint(folder_ / "saved").source().loss_scale);
  expect_trained("tiny", "a", half + save + "6");
  EXPECT_TRUE(Checkpoint(folder_ / "saved").source().loss_scale == (LossScale{2048, 3, 2}));
  expect_trained("tiny", "a", brain + save + "8");
  EXPECT_FALSE(Checkpoint(folder_ / "saved").source().loss_scale);
  EXPECT_EQ(Checkpoint(folder_ / "saved").source().updates, 8);
  EXPECT_EQ(column(folder_ / "a", "loss").size(), 8u);
  EXPECT_EQ(column(folder_ / "a", "loss_scale").size(), 3u);
}

// The scale of a checkpoint is not kept below the smallest that the config allows now.
TEST_F(Fp16Program, AHigherFloorLiftsTheScaleThatWasKept) {
  const std::string half = "mixed_precision.precision=fp16 mixed_precision.initial_loss_scale=",
                    save = " train.eval_iters=0 checkpoint.save=" + path("saved") + " train.train_iters=";
  expect_trained("tiny", "a", half + "512" + save + "3");
  expect_trained("tiny", "a", half + "4096 mixed_precision.min_loss_scale=2048" + save + "5");
  EXPECT_EQ(numbers("a", "loss_scale"), (std::vector<double>{512, 512, 512, 2048, 2048}));
}

TEST_F(Fp16Program, WeightsGoOutAndIn) {
  expect_trained(
      "tiny", "a",
      "mixed_precision.precision=fp16 mixed_precision.initial_loss_scale=1024 checkpoint.save=" + path("saved"));
  EXPECT_EQ(run_program("export --load " + path("saved") + " --output " + path("hf")).status, 0);
  EXPECT_NE(slurp(folder_ / "hf/config.json").find("float16"), std::string::npos);
  const auto logits = [&](const std::string& model, const std::string& out) {
    const Outcome outcome =
        run_program(fmt::format("logits --model {} --tokens 1,2,3,4 --output {}", path(model), path(out)));
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    return slurp(folder_ / out);
  };
  EXPECT_EQ(run_program("import --model " + path("hf") + " --output " + path("back")).status, 0);
  EXPECT_TRUE(logits("hf", "a.safetensors") == logits("back", "b.safetensors"));
  const Tensors saved = tensors("saved");
  for (const auto& [name, values] : tensors("back")) EXPECT_TRUE(values == saved.at(name)) << name;
  expect_trained("tiny", "b", "mixed_precision.precision=fp16 train.train_iters=2 model.hf=" + path("hf"));
}

}  // namespace
}  // namespace tera::test
