// Steps that are recorded once and replayed (CUDA graphs), on the CPU: the same bits as call by call.

#include <gtest/gtest.h>

#include "tera/base/signals.h"
#include "tests/end_to_end/training_run.h"
#include "tests/support/frozen_ops.h"

namespace tera::test {
namespace {

struct Recorded {
  RunRecord run;
  int replayed = 0;
  std::int64_t steps = 0;
};

struct Losses final : MetricsSink {
  explicit Losses(RunRecord& of) : record(of) {}
  void step(const StepMetrics& metrics) override { record.loss.push_back(metrics.number("loss")); }
  void eval(const EvalMetrics& metrics) override { record.eval_loss.push_back(metrics.eval_loss); }
  RunRecord& record;
};

Recorded train_recorded(const std::string& config, const Overrides& overrides, bool refuses = false) {
  const Setup setup = load_setup(config, overrides);
  StopRequest stop;
  Log log({.console = -1});
  Backend backend = make_backend(setup.config.dist);
  auto frozen = std::make_unique<FrozenOps>(std::move(backend.ops));
  FrozenOps& ops = *frozen;
  ops.refuses = refuses;
  backend.ops = std::move(frozen);
  Trainer trainer(setup, backend, make_data_source(setup), log);
  Recorded result;
  trainer.add_sink(std::make_unique<Losses>(result.run));
  trainer.run(stop);
  result.run.weights = read_weights(trainer.step().params(), *backend.ops);
  result.replayed = ops.replayed;
  result.steps = trainer.steps();
  return result;
}

void expect_same(const Recorded& recorded, const RunRecord& calls, const std::string& what) {
  EXPECT_EQ(recorded.run.loss, calls.loss) << what;
  EXPECT_EQ(recorded.run.eval_loss, calls.eval_loss) << what;
  EXPECT_TRUE(recorded.run.weights == calls.weights) << what;
}

TEST(Recording, GivesTheBitsOfSingleCalls) {
  const std::pair<std::string, Overrides> runs[] = {
      {"tiny", {}},
      {"tiny", {"mixed_precision.precision=bf16", "train.micro_batch_size=1", "train.global_batch_size=4"}},
      {"tiny", {"mixed_precision.precision=fp16", "mixed_precision.initial_loss_scale=4194304"}},
      {"tiny_gpt", {"model.hidden_dropout=0.2", "model.attention_dropout=0.1"}},
      {"tiny_qwen3", {"model.recompute_granularity=full"}},
      {"tiny_mla", {}},
      {"tiny_mistral", {"optimizer.optimizer=sgd", "optimizer.lr=0.1"}}};
  for (const auto& [config, more] : runs) {
    const Recorded recorded = train_recorded(config, more);
    expect_same(recorded, train_once(config, more), config);
    EXPECT_EQ(recorded.replayed, recorded.steps - 1) << config << ": all but the first";
  }
}

TEST(Recording, OfWholeStepsOnly) {
  const Overrides growing{"train.train_iters=0",      "train.train_samples=40",    "train.rampup_batch_size=[2,2,8]",
                          "train.micro_batch_size=1", "train.global_batch_size=6", "scheduler.lr_warmup_iters=0"};
  const Recorded recorded = train_recorded("tiny", growing);
  expect_same(recorded, train_once("tiny", growing), "growing");
  EXPECT_GT(recorded.replayed, 1);
  EXPECT_LT(recorded.replayed, recorded.steps - 2);
}

TEST(Recording, IsLeftWhereItCannotBe) {
  const Overrides asked_not{"train.cuda_graph_impl=none"}, offload{"model.offload_modules=[mlp]"};
  for (const Overrides& more : {asked_not, offload}) {
    const Recorded calls = train_recorded("tiny", more);
    EXPECT_EQ(calls.replayed, 0);
    expect_same(calls, train_once("tiny", more), more[0]);
  }
}

// A step's results are read after the next one is enqueued, however many points that records.
TEST(Recording, PointsOfAWholeStepAreKept) {
  const Overrides many{"model.offload_modules=[attn_norm, attention, mlp_norm, mlp]", "train.micro_batch_size=1",
                       "train.global_batch_size=16", "model.num_layers=12"};
  expect_same(train_recorded("tiny", many), train_once("tiny", many), "many points");
}

// An attempt that ends in the middle leaves the step as it was.
TEST(Recording, ThatFailsChangesNothing) {
  const Recorded refused = train_recorded("tiny", {}, /*refuses=*/true);
  EXPECT_EQ(refused.replayed, 0);
  expect_same(refused, train_once("tiny"), "refused");
}

}  // namespace
}  // namespace tera::test
