// Features of a step, from outside: their calls, a number of their own, a veto, and what the built-in ones report.

#include "tera/train/step/step_feature.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "tera/comm/world.h"
#include "tera/ops/copy.h"
#include "tera/setup/load.h"
#include "tests/end_to_end/training_run.h"
#include "tests/support/paths.h"

namespace tera::test {
namespace {

// One rank that trains on sequences of its own making.
struct Rank {
  Rank(const tera::Setup& of_run, StepFeatures::List features, RankHandle* handle = nullptr)
      : setup(of_run),
        backend(make_backend(setup.config.dist)),
        world(handle ? handle->join(*backend.ops) : make_self_comm(*backend.ops)),
        step(setup, world->rank(), stage_schedules(setup, 0), std::move(features)) {
    step.bind(backend, *world);
  }
  void load(std::int64_t number) {
    const auto rows = static_cast<std::size_t>(setup.batch.micro_batch * setup.batch.seq_length);
    const auto depths = static_cast<std::size_t>(setup.model.mtp_layers);
    std::vector<std::int32_t> tokens(rows), targets(rows), positions(rows);
    for (std::size_t i = 0; i < rows; ++i) {
      tokens[i] = static_cast<std::int32_t>((static_cast<std::int64_t>(i) * 7 + number) % setup.model.vocab);
      targets[i] = static_cast<std::int32_t>((static_cast<std::int64_t>(i) * 7 + 7 + number) % setup.model.vocab);
      positions[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) % setup.batch.seq_length);
    }
    std::vector<std::int32_t> mtp(depths * rows, 3);
    std::vector<std::int64_t> row_ids(rows);
    const std::vector<float> mtp_scales(depths, 0.01f);
    for (std::int64_t i = 0; i < setup.batch.num_microbatches; ++i)
      step.load(i,
                {.tokens = tokens,
                 .targets = targets,
                 .positions = positions,
                 .row_ids = row_ids,
                 .mtp_tokens = mtp,
                 .mtp_targets = mtp},
                1.0f / static_cast<float>(rows), 0.01f, mtp_scales);
  }
  StepReading train(std::int64_t number) {
    load(number);
    step.run(1e-3);
    return step.result(step.read_back());
  }
  std::vector<float> weights() { return read_weights(step.params(), *backend.ops); }

  const tera::Setup& setup;
  Backend backend;
  std::unique_ptr<Comm> world;
  TrainingStep step;
};

// Writes down its calls.
class Calls final : public StepFeature {
 public:
  Calls(int order, std::string& log) : StepFeature(order), log_(log) {}
  void describe(StepBoard& /*board*/) override { note("describe"); }
  void load(Ops& /*ops*/, const LoadedMicroBatch& /*loaded*/) override { note("load"); }
  void begin_step(Ops& /*ops*/) override { note("begin"); }
  void after_backward(const StepRun& run) override { note("backward of " + std::to_string(run.microbatches)); }
  void after_update(Ops& /*ops*/, const Tensor& /*grad_factor*/) override { note("update"); }
  void after_evaluation(const StepRun& run) override { note("evaluation of " + std::to_string(run.microbatches)); }
  void read(const StepReading& /*reading*/, StepScalars::When of) override {
    note(of == StepScalars::When::step ? "read" : "read evaluation");
  }

 private:
  void note(const std::string& call) { log_ += std::to_string(order()) + " " + call + "; "; }
  std::string& log_;
};

TEST(StepFeatures, CallsComeInTheirOrder) {
  std::string log;
  StepFeatures::List features;
  features.push_back(std::make_unique<Calls>(2000, log));
  features.push_back(std::make_unique<Calls>(1000, log));
  const tera::Setup setup = load_setup("tiny", {"train.global_batch_size=2"});  // one microbatch
  Rank rank(setup, std::move(features));
  EXPECT_TRUE(log.starts_with("1000 describe; 2000 describe; ")) << log;
  log.clear();
  rank.train(0);
  EXPECT_EQ(log,
            "1000 load; 2000 load; 1000 begin; 2000 begin; 1000 backward of 1; 2000 backward of 1; "
            "1000 update; 2000 update; 1000 read; 2000 read; ");
  log.clear();
  rank.step.evaluate();
  EXPECT_EQ(log, "1000 evaluation of 1; 2000 evaluation of 1; 1000 read evaluation; 2000 read evaluation; ");
}

TEST(StepFeatures, NoTwoHaveTheSameOrder) {
  std::string log;
  StepFeatures::List features;
  features.push_back(std::make_unique<Calls>(FeatureOrder::token_loss, log));
  const tera::Setup setup = load_setup("tiny", {});
  EXPECT_THROW(TrainingStep(setup, 0, stage_schedules(setup, 0), std::move(features)), Error);
}

// A number of a step: the line in describe(), and the op that computes it.
class LargestRank final : public StepFeature {
 public:
  LargestRank() : StepFeature(FeatureOrder::others) {}
  void describe(StepBoard& board) override {
    board_ = &board;
    number_ = board.scalars.add(
        {.name = "largest_rank", .combine = Combine::max, .logged = true, .console = "largest rank {:.0f}"});
  }
  void after_backward(const StepRun& run) override {
    run.ops(FillArgs{.out = board_->scalars.slot(number_), .value = 10.0 + run.groups.world.rank()});
  }

 private:
  StepBoard* board_ = nullptr;
  std::size_t number_ = 0;
};

StepFeatures::List one(std::unique_ptr<StepFeature> feature) {
  StepFeatures::List list;
  list.push_back(std::move(feature));
  return list;
}

tera::Setup setup_of_ranks(int ranks, const Overrides& more) {
  std::vector<std::string> all{"dist.device=cpu"};
  all.insert(all.end(), more.begin(), more.end());
  const LoadedConfig loaded = load_config(source_path("configs/tests/tiny.yaml"), all);
  return resolve(loaded.config, Purpose::train, &loaded.origins, ranks);
}

TEST(StepFeatures, ANumberGoesToTheLogByItsName) {
  const tera::Setup setup = setup_of_ranks(2, {});
  run_threads(2, {.timeout = std::chrono::seconds(60)}, [&](RankHandle& handle) {
    Rank rank(setup, one(std::make_unique<LargestRank>()), &handle);
    const StepReading reading = rank.train(0);
    EXPECT_EQ(reading.number("largest_rank"), 11);
    MetricList metrics;
    rank.step.features().report(reading, {.step = 1, .samples = 4, .counts = BatchCounts{}}, metrics);
    ASSERT_EQ(metrics.all().size(), 1u) << "the built-in features of this model report nothing";
    EXPECT_EQ(metrics.all()[0].name, "largest_rank");
    EXPECT_EQ(std::get<double>(metrics.all()[0].value), 11);
    EXPECT_EQ(metrics.all()[0].console, "largest rank {:.0f}");
  });
}

// Vetoes the steps of a list, on one rank.
class VetoOn final : public StepFeature {
 public:
  VetoOn(int rank, std::vector<int> steps) : StepFeature(FeatureOrder::others), rank_(rank), steps_(std::move(steps)) {}
  void describe(StepBoard& board) override {
    board_ = &board;
    flag_ = board.vetoes.add();
  }
  void start(Ops& /*ops*/) override { step_ = 0; }  // the rehearsal is over
  void after_backward(const StepRun& run) override {
    const bool veto = run.groups.world.rank() == rank_ && std::ranges::count(steps_, step_++) > 0;
    const double flag = veto ? std::numeric_limits<double>::quiet_NaN() : 0;
    run.ops(FillArgs{.out = board_->vetoes.flag(flag_), .value = flag});
  }

 private:
  StepBoard* board_ = nullptr;
  int rank_, step_ = 0;
  std::vector<int> steps_;
  std::int64_t flag_ = 0;
};

struct Trained {
  std::vector<double> norms;
  std::vector<bool> skipped;
  std::vector<float> weights;
  std::int64_t updates = 0;
};

// Trains on the batches of these numbers, on two ranks; returns what rank 0 has.
Trained train_with(const Overrides& config, const std::vector<std::int64_t>& batches, const std::vector<int>& vetoed,
                   bool with_feature) {
  const tera::Setup setup = setup_of_ranks(2, config);
  Trained trained;
  run_threads(2, {.timeout = std::chrono::seconds(60)}, [&](RankHandle& handle) {
    Rank rank(setup, with_feature ? one(std::make_unique<VetoOn>(1, vetoed)) : StepFeatures::List{}, &handle);
    for (const std::int64_t batch : batches) {
      const StepReading reading = rank.train(batch);
      if (handle.rank() != 0) continue;
      trained.norms.push_back(reading.number("grad_norm"));
      trained.skipped.push_back(LossScaling::state_of(reading).skipped != 0);
    }
    rank.step.wait_for_weights();
    rank.world->barrier();
    if (handle.rank() != 0) return;
    trained.weights = rank.weights();
    trained.updates = rank.step.scaling().updates();
  });
  return trained;
}

// A vetoed step computes its loss and norm, and leaves no trace in weights, moments and the count of updates: the run
// is, to the bit, one that never had its batch. (A dynamic loss scale takes the step for an overflow.)
TEST(StepFeatures, AVetoedStepLeavesNoTrace) {
  for (const Overrides& config :
       {Overrides{"mixed_precision.precision=fp32"}, Overrides{"mixed_precision.precision=bf16"},
        Overrides{"mixed_precision.precision=fp16", "mixed_precision.loss_scale=1024"}}) {
    SCOPED_TRACE(config.front());
    const Trained vetoed = train_with(config, {0, 1, 2, 3}, {1, 2}, true);
    const Trained without = train_with(config, {0, 3}, {}, true);
    const Trained plain = train_with(config, {0, 3}, {}, false);
    EXPECT_EQ(vetoed.skipped, (std::vector{false, true, true, false}));
    EXPECT_EQ(vetoed.updates, 2);
    EXPECT_EQ(plain.updates, 2);
    for (const double norm : vetoed.norms) EXPECT_TRUE(std::isfinite(norm)) << "it is of the gradients alone";
    EXPECT_GT(vetoed.norms[1], 0);
    EXPECT_EQ(vetoed.norms[3], without.norms[1]);
    EXPECT_TRUE(vetoed.weights == without.weights);
    EXPECT_TRUE(without.weights == plain.weights) << "a feature that never vetoes changes no bit";
    EXPECT_FALSE(vetoed.weights == train_with(config, {0, 1, 2, 3}, {}, true).weights) << "the batches would train";
  }
}

TEST(StepFeatures, ReportsOfMtpAreMeansOverTheirTargets) {
  const tera::Setup setup = load_setup("sweep_mtp", {"train.global_batch_size=2", "train.micro_batch_size=2"});
  ASSERT_EQ(setup.model.mtp_layers, 2);
  Rank rank(setup, {});
  const StepReading reading = rank.train(0);
  BatchCounts counts;
  counts.mtp_targets[0] = 20;
  counts.mtp_targets[1] = 0;  // a mean of nothing is its sum
  MetricList metrics;
  rank.step.features().report(reading, {.step = 1, .samples = 2, .counts = counts}, metrics);
  const double first = reading.number_at("mtp_loss_sums", 0) / 20, second = reading.number_at("mtp_loss_sums", 1);
  EXPECT_GT(first, 0);
  EXPECT_GT(second, 0);
  const StepMetrics step{.step = 1, .values = metrics.all()};
  EXPECT_EQ(step.number("mtp_loss"), (first + second) / 2);
  ASSERT_TRUE(step.find("mtp_losses"));
  const auto losses = std::get<std::span<const double>>(step.find("mtp_losses")->value);
  EXPECT_EQ(std::vector<double>(losses.begin(), losses.end()), (std::vector<double>{first, second}));
}

TEST(StepFeatures, ReportsOfExpertsAreOfTheirCounts) {
  const tera::Setup setup = load_setup("tiny_mixtral", {"logger.log_expert_load=true", "model.moe.z_loss_coeff=0.001"});
  Rank rank(setup, {});
  const StepReading reading = rank.train(0);
  MetricList metrics;
  rank.step.features().report(reading, {.step = 1, .samples = setup.batch.global_batch, .counts = BatchCounts{}},
                              metrics);
  const StepMetrics step{.step = 1, .values = metrics.all()};
  const auto layers = static_cast<std::size_t>(setup.model.expert_layers()),
             experts = static_cast<std::size_t>(setup.model.moe->experts);
  const std::span<const std::int32_t> counts = reading.values<std::int32_t>("expert_counts");
  ASSERT_EQ(counts.size(), layers * experts);
  const std::int64_t choices = setup.batch.global_batch * setup.batch.seq_length * setup.model.moe->router.topk;
  const auto worst = std::get<std::span<const double>>(step.find("moe.load_max_over_mean")->value),
             unused = std::get<std::span<const double>>(step.find("moe.unused_experts")->value);
  ASSERT_EQ(worst.size(), layers);
  for (std::size_t layer = 0; layer < layers; ++layer) {
    const auto of_layer = counts.subspan(layer * experts, experts);
    EXPECT_EQ(std::accumulate(of_layer.begin(), of_layer.end(), std::int64_t{0}), choices);
    std::int32_t most = 0;
    double none = 0;
    for (const std::int32_t count : of_layer) {
      most = std::max(most, count);
      none += count == 0 ? 1 : 0;
    }
    EXPECT_DOUBLE_EQ(worst[layer], most / (static_cast<double>(choices) / static_cast<double>(experts)));
    EXPECT_EQ(unused[layer], none / static_cast<double>(experts));
  }
  const auto table = std::get<MetricTable>(step.find("moe.expert_load")->value);
  EXPECT_EQ(table.columns, experts);
  EXPECT_TRUE(std::ranges::equal(table.values, counts));
  const auto rows = static_cast<double>(setup.batch.micro_batch * setup.batch.seq_length),
             terms = static_cast<double>(layers) * static_cast<double>(setup.batch.num_microbatches);
  EXPECT_DOUBLE_EQ(step.number("z_loss"),
                   reading.number_at("aux_losses", static_cast<std::size_t>(AuxLoss::z)) / (rows * terms));
  EXPECT_GT(step.number("z_loss"), 0);
}

}  // namespace
}  // namespace tera::test
