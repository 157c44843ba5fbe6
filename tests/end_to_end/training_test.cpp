// Training runs against each other: what must not change a result changes no bit of it, and what must, does.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tera/base/signals.h"
#include "tests/end_to_end/training_run.h"

namespace tera::test {
namespace {

void expect_same(const RunRecord& a, const RunRecord& b, const std::string& what) {
  EXPECT_EQ(a.loss, b.loss) << what;
  EXPECT_EQ(a.grad_norm, b.grad_norm) << what;
  EXPECT_TRUE(a.weights == b.weights) << what;
}

void expect_close(const RunRecord& a, const RunRecord& b, double tolerance, const std::string& what) {
  ASSERT_EQ(a.loss.size(), b.loss.size()) << what;
  for (std::size_t i = 0; i < a.loss.size(); ++i)
    EXPECT_NEAR(a.loss[i], b.loss[i], tolerance * a.loss[i]) << what << ", step " << i + 1;
}

// Large enough that every operation is cut among threads.
const Overrides wide{"model.hidden_size=96", "model.ffn_hidden_size=160", "train.seq_length=96", "train.train_iters=4"};
const Overrides dropout{"model.hidden_dropout=0.2", "model.attention_dropout=0.1"};

TEST(Training, TheSameConfigGivesTheSameBits) {
  for (const char* config : {"tiny", "tiny_gpt", "tiny_mistral", "tiny_qwen2", "tiny_qwen3", "tiny_mla"}) {
    const RunRecord first = train_once(config);
    EXPECT_EQ(first.loss.size(), 10u);
    EXPECT_EQ(first.eval_loss.size(), 2u);
    EXPECT_EQ(first, train_once(config)) << config;
  }
}

// Notes what is reported, in order: "1 2 eval 2 3".
class OrderSink final : public MetricsSink {
 public:
  explicit OrderSink(std::string& order, double& last_loss) : order_(order), last_loss_(last_loss) {}
  void step(const StepMetrics& metrics) override {
    order_ += std::to_string(metrics.step) +
              (metrics.number("tokens") == static_cast<double>(metrics.step * 2 * 16) ? " " : "! ");
    last_loss_ = metrics.number("loss");
  }
  void eval(const EvalMetrics& metrics) override { order_ += "eval " + std::to_string(metrics.step) + " "; }
  void finish() override { order_ += "end"; }

 private:
  std::string& order_;
  double& last_loss_;
};

std::pair<std::string, double> reported(bool late) {
  const tera::Setup setup = load_setup("tiny", {"train.train_iters=5", "train.eval_interval=2", "train.eval_iters=1",
                                                "train.seq_length=16", "train.global_batch_size=2"});
  StopRequest stop;
  Log log({.console = -1});
  Backend backend = make_backend(setup.config.dist);
  Trainer trainer(setup, backend, make_data_source(setup), log);
  std::string order;
  double last_loss = 0;
  trainer.add_sink(std::make_unique<OrderSink>(order, last_loss));
  trainer.report_late(late);
  trainer.run(stop);
  return {order, last_loss};
}

TEST(Training, ReportingAStepLateChangesNothingInTheReport) {
  const auto [order, last_loss] = reported(/*late=*/false);
  EXPECT_EQ(order, "1 2 eval 2 3 4 eval 4 5 eval 5 end");
  EXPECT_EQ(reported(/*late=*/true), std::pair(order, last_loss));
}

TEST(Training, AnotherSeedGivesOthers) {
  EXPECT_NE(train_once("tiny").loss[0], train_once("tiny", {"train.seed=5"}).loss[0]);
}

TEST(Training, ThreadsChangeNoBit) {
  for (const auto& [config, more] : {std::pair<std::string, Overrides>{"tiny", {}},
                                     {"tiny", {"mixed_precision.precision=bf16"}},
                                     {"tiny", {"mixed_precision.precision=fp16", "mixed_precision.loss_scale=1024"}},
                                     {"tiny_gpt", dropout}}) {
    const RunRecord one = train_once(config, wide + more + Overrides{"dist.threads=1"});
    for (const char* threads : {"dist.threads=2", "dist.threads=3"})
      expect_same(one, train_once(config, wide + more + Overrides{threads}), config + " " + threads);
  }
}

TEST(Training, RecomputingChangesNoBit) {
  for (const char* config : {"tiny", "tiny_gpt"}) {
    const RunRecord plain = train_once(config, dropout);
    expect_same(plain, train_once(config, dropout + Overrides{"model.recompute_granularity=full"}), config);
    for (const char* modules : {"[layernorm]", "[activation]", "[layernorm, activation]"})
      expect_same(plain,
                  train_once(config, dropout + Overrides{"model.recompute_granularity=selective",
                                                         std::string("model.recompute_modules=") + modules}),
                  std::string(config) + " " + modules);
  }
}

TEST(Training, EvaluationChangesNoBit) {
  const RunRecord often = train_once("tiny_gpt", dropout + Overrides{"train.eval_interval=1"});
  const RunRecord never = train_once("tiny_gpt", dropout + Overrides{"train.eval_iters=0"});
  EXPECT_EQ(often.eval_loss.size(), 10u);
  EXPECT_TRUE(never.eval_loss.empty());
  expect_same(often, never, "evaluation");
}

TEST(Training, EvaluationSeesOtherDataByTheSameRules) {
  const RunRecord run = train_once("tiny", {"train.train_iters=150", "train.eval_interval=50", "optimizer.lr=1e-2"});
  ASSERT_EQ(run.eval_loss.size(), 3u);
  EXPECT_LT(run.eval_loss[2], run.eval_loss[0]);
  EXPECT_NEAR(run.eval_loss[2], run.loss.back(), 0.2 * run.loss.back());
}

TEST(Training, HowTheBatchIsCutMattersOnlyByRounding) {
  const auto cut = [](const char* micro) {
    return train_once("tiny_gpt",
                      dropout + Overrides{"train.global_batch_size=8", std::string("train.micro_batch_size=") + micro});
  };
  const RunRecord uncut = cut("8");
  for (const char* micro : {"4", "2", "1"}) expect_close(uncut, cut(micro), 1e-5, micro);
}

TEST(Training, Bf16FollowsFp32) {
  const Overrides longer{"train.train_iters=60", "optimizer.lr=5e-3"};
  const RunRecord exact = train_once("tiny", longer),
                  rounded = train_once("tiny", longer + Overrides{"mixed_precision.precision=bf16"});
  expect_close(exact, rounded, 0.02, "bf16");
  EXPECT_NE(exact.loss, rounded.loss);
  EXPECT_LT(rounded.loss.back(), rounded.loss[0] - 0.5);
}

// An update uses moments before they are rounded: the first update is that of fp32, and only the second differs.
TEST(Training, MomentsInBf16FollowFp32) {
  const Overrides longer{"train.train_iters=60", "optimizer.lr=5e-3", "optimizer.adam_beta2=0.95",
                         "scheduler.lr_warmup_iters=0"};
  const Overrides first{"optimizer.exp_avg_dtype=bf16"}, second{"optimizer.exp_avg_sq_dtype=bf16"};
  const Overrides bf16{"mixed_precision.precision=bf16"};
  const RunRecord exact = train_once("tiny", longer);
  std::vector<std::vector<double>> losses{exact.loss};
  for (const Overrides& moments : {first, second, first + second}) {
    const RunRecord rounded = train_once("tiny", longer + moments);
    expect_close(exact, rounded, 0.002, moments[0]);
    EXPECT_EQ(rounded.loss[1], exact.loss[1]) << moments[0];
    EXPECT_NE(rounded.loss[2], exact.loss[2]) << moments[0];
    EXPECT_LT(rounded.loss.back(), rounded.loss[0] - 0.5);
    EXPECT_EQ(std::count(losses.begin(), losses.end(), rounded.loss), 0) << moments[0];
    losses.push_back(rounded.loss);
  }
  expect_close(train_once("tiny", longer + bf16), train_once("tiny", longer + bf16 + first + second), 0.02, "bf16");
}

TEST(Training, SgdTrains) {
  const RunRecord run = train_once("tiny", {"optimizer.optimizer=sgd", "optimizer.lr=0.3", "train.train_iters=60"});
  EXPECT_LT(run.loss.back(), run.loss[0] - 0.3);
}

TEST(Training, EveryLearningRateStyleRuns) {
  for (const char* style : {"constant", "linear", "cosine", "inverse-square-root", "WSD"}) {
    const RunRecord run = train_once("tiny", {std::string("scheduler.lr_decay_style=") + style,
                                              "scheduler.lr_wsd_decay_iters=4", "optimizer.lr=1e-2"});
    EXPECT_LT(run.loss.back(), run.loss[0]) << style;
  }
}

// Update k runs at the rate of the samples before it: with a warm-up of four steps from 0 to 0.01, then linear to 0.
TEST(Training, UpdatesRunAtTheScheduledRate) {
  const RunRecord run = train_once(
      "tiny", {"train.train_iters=10", "optimizer.lr=1e-2", "optimizer.min_lr=0", "scheduler.lr_decay_style=linear",
               "scheduler.lr_warmup_iters=4", "scheduler.lr_decay_iters=10"});
  ASSERT_EQ(run.lr.size(), 10u);
  for (std::size_t i = 0; i < 10; ++i) {
    const double done = static_cast<double>(i);  // updates before this one
    EXPECT_NEAR(run.lr[i], i <= 4 ? 0.01 * done / 4 : 0.01 * (10 - done) / 6, 1e-12) << "update " << i + 1;
  }
}

// Trains with some parameters frozen and returns which have moved, by name.
std::vector<std::string> moved(const Overrides& overrides) {
  const tera::Setup setup = load_setup("tiny", overrides);
  StopRequest stop;
  Log log({.console = -1});
  Backend backend = make_backend(setup.config.dist);
  Trainer trainer(setup, backend, make_data_source(setup), log);
  const auto values = [&](const Param& param) { return read_part(*backend.ops, param.value, param.spec.parts[0]); };
  std::vector<std::vector<float>> before;
  for (const Param* param : trainer.step().params().by_name()) before.push_back(values(*param));
  trainer.run(stop);
  std::vector<std::string> names;
  std::size_t i = 0;
  for (const Param* param : trainer.step().params().by_name())
    if (values(*param) != before[i++]) names.push_back(param->spec.name);
  return names;
}

TEST(Training, FrozenParametersStay) {
  const std::vector<std::string> all = moved({});
  for (const char* precision : {"mixed_precision.precision=fp32", "mixed_precision.precision=bf16"}) {
    std::vector<std::string> expected;
    std::copy_if(all.begin(), all.end(), std::back_inserter(expected),
                 [](const std::string& name) { return name.find("layers.0.") == std::string::npos; });
    ASSERT_LT(expected.size(), all.size());
    EXPECT_EQ(moved({"model.freeze=['model.layers.0.*']", "train.train_iters=30", "optimizer.lr=1e-2", precision}),
              expected);
  }
}

// Samples of odd length: positions after their end have no target.
class GappyDataset final : public Dataset {
 public:
  explicit GappyDataset(bool gaps) : gaps_(gaps), mock_(61, 3) {}
  std::int64_t samples() const override { return mock_.samples(); }
  void sample(std::int64_t index, std::span<std::int32_t> tokens) const override {
    mock_.sample(index, tokens);
    const auto length = static_cast<std::size_t>(3 + index * 5 % 13);
    if (gaps_ && length < tokens.size()) std::ranges::fill(tokens.subspan(length), -1);
  }
  bool has_gaps() const override { return gaps_; }

 private:
  bool gaps_;
  MockDataset mock_;
};

double first_grad_norm(const std::string& reduction, bool gaps) {
  const tera::Setup setup =
      load_setup("tiny", {"train.loss_reduction=" + reduction, "train.train_iters=1", "scheduler.lr_warmup_iters=0",
                          "train.micro_batch_size=1", "train.eval_iters=0"});
  StopRequest stop;
  Log log({.console = -1});
  Backend backend = make_backend(setup.config.dist);
  Trainer trainer(setup, backend,
                  {.tokenizer = nullptr, .train = std::make_unique<GappyDataset>(gaps), .valid = {}, .summary = {}},
                  log);
  trainer.run(stop);
  return trainer.step().result(trainer.step().read_back()).number("grad_norm");
}

TEST(Training, LossReductionMattersOnlyWhereTargetsAreMasked) {
  EXPECT_NEAR(first_grad_norm("global", false), first_grad_norm("microbatch", false), 1e-5);
  EXPECT_GT(std::abs(first_grad_norm("global", true) - first_grad_norm("microbatch", true)), 1e-3);
}

}  // namespace
}  // namespace tera::test
