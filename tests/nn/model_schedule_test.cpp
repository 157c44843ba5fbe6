// Complete models under schedules of several microbatches: the engine's side of the blocks' contract.

#include <gtest/gtest.h>

#include <cmath>

#include "tests/nn/block_checks.h"
#include "tests/nn/tiny_shape.h"
#include "tests/support/model.h"

namespace tera::test {
namespace {

constexpr std::int64_t seq = 10, batch_size = 2;

std::vector<Batch> random_batches(std::size_t microbatches) {
  std::vector<Batch> batches;
  for (std::size_t i = 0; i < microbatches; ++i) batches.push_back(random_batch(batch_size, seq, 29, 50 + i));
  return batches;
}

struct Result {
  double loss = 0;
  std::vector<float> gradients;
};

Result train_with(const ModelShape& shape, const Schedule& schedule, int threads = 1) {
  Model model(shape, {.threads = threads, .schedule = schedule, .batch = batch_size, .seq = seq});
  model.train(random_batches(3));
  Result result{.loss = model.train(random_batches(3)),
                .gradients = model.all_gradients()};  // twice: nothing is left over
  EXPECT_TRUE(model.peaks_as_planned());
  EXPECT_TRUE(model.stashes_are_empty());
  return result;
}

// Three microbatches; F, B and W each in order of microbatches, so each parameter's sum has the same order.
const std::vector<Schedule>& schedules_in_order() {
  using enum Act;
  static const std::vector<Schedule> schedules = {
      {{F, 0}, {B, 0}, {W, 0}, {F, 1}, {B, 1}, {W, 1}, {F, 2}, {B, 2}, {W, 2}},
      {{F, 0}, {F, 1}, {F, 2}, {B, 0}, {B, 1}, {B, 2}, {W, 0}, {W, 1}, {W, 2}},
      {{F, 0}, {F, 1}, {F, 2}, {BW, 0}, {BW, 1}, {BW, 2}},
      {{F, 0}, {F, 1}, {BW, 0}, {F, 2}, {BW, 1}, {BW, 2}},                       // 1F1B
      {{F, 0}, {F, 1}, {B, 0}, {F, 2}, {B, 1}, {W, 0}, {B, 2}, {W, 1}, {W, 2}},  // zero bubble
      {{F, 0}, {F, 1}, {BW, 0}, {B, 1}, {F, 2}, {W, 1}, {BW, 2}}};
  return schedules;
}

ModelShape untied_gpt_with_dropout() {
  ModelShape model = tiny_gpt_shape();
  model.tied_embeddings = false;
  model.hidden_dropout = model.attention_dropout = 0.1f;
  return model;
}

TEST(ModelSchedules, GiveTheSameBits) {
  ModelShape recomputed = tiny_shape();
  recomputed.recompute.full = true;
  for (const ModelShape& shape : {tiny_shape(), untied_gpt_with_dropout(), recomputed}) {
    const Result plain = train_with(shape, one_stage(3));
    for (const Schedule& schedule : schedules_in_order()) {
      const Result other = train_with(shape, schedule);
      EXPECT_EQ(other.loss, plain.loss);
      expect_same_bits(other.gradients, plain.gradients, "a schedule");
    }
  }
}

// A tied table gets gradients from the head in F and from the embedding in W; schedules order these differently, so
// only its last bits may move.
TEST(ModelSchedules, TiedTablesDifferByRoundingOnly) {
  const ModelShape shape = tiny_gpt_shape();
  const Result plain = train_with(shape, one_stage(3));
  for (const Schedule& schedule : schedules_in_order()) {
    const Result other = train_with(shape, schedule);
    EXPECT_EQ(other.loss, plain.loss);
    double difference = 0, largest = 0;
    for (std::size_t i = 0; i < plain.gradients.size(); ++i) {
      difference = std::max(difference, std::abs(static_cast<double>(plain.gradients[i]) - other.gradients[i]));
      largest = std::max(largest, std::abs(static_cast<double>(plain.gradients[i])));
    }
    EXPECT_LE(difference, 4 * 0x1p-24 * largest);
  }
}

TEST(ModelSchedules, RecomputeChangesNoBit) {
  for (const ModelShape& shape : {tiny_shape(), untied_gpt_with_dropout()}) {
    const Result kept = train_with(shape, one_stage(3));
    for (const RecomputeShape& recompute :
         {RecomputeShape{.full = true}, RecomputeShape{.layernorm = true}, RecomputeShape{.activation = true}}) {
      ModelShape remade = shape;
      remade.recompute = recompute;
      expect_same_bits(train_with(remade, one_stage(3)).gradients, kept.gradients, "recompute");
    }
  }
}

TEST(ModelSchedules, ThreadsChangeNoBit) {
  const ModelShape shape = untied_gpt_with_dropout();
  const Result one = train_with(shape, one_stage(3));
  for (const int threads : {2, 3}) {
    const Result several = train_with(shape, one_stage(3), threads);
    EXPECT_EQ(several.loss, one.loss);
    expect_same_bits(several.gradients, one.gradients, "threads");
  }
}

struct Recorder final : ParamHooks {
  std::vector<int> ready;
  void after(int block, Act, bool last) override {
    if (last) ready.push_back(block);
  }
};

// Embedding, two layers and head are reported as ready once each, in the order of backward, and only by the last
// microbatch: their gradients do not change any more.
TEST(ModelSchedules, BlocksAreReadyOnceInReverse) {
  std::vector<Schedule> schedules = schedules_in_order();
  schedules.push_back(one_stage(3));
  for (const Schedule& schedule : schedules) {
    Model model(tiny_shape(), {.schedule = schedule, .batch = batch_size, .seq = seq});
    Recorder recorder;
    model.train(random_batches(3), recorder);
    EXPECT_EQ(recorder.ready, (std::vector{3, 2, 1, 0}));
  }
}

struct HeadGradientAtReady final : ParamHooks {
  explicit HeadGradientAtReady(Model& m) : model(m) {}
  void after(int block, Act, bool last) override {
    if (!last) return;
    if (block == 3) head = model.gradient("lm_head.weight");
    if (block == 2) layer = model.gradient("model.layers.1.mlp.down_proj.weight");
  }
  Model& model;
  std::vector<float> head, layer;
};

TEST(ModelSchedules, GradientsOfAReadyBlockAreComplete) {
  for (const Schedule& schedule : schedules_in_order()) {
    Model model(tiny_shape(), {.schedule = schedule, .batch = batch_size, .seq = seq});
    HeadGradientAtReady hooks(model);
    model.train(random_batches(3), hooks);
    expect_same_bits(hooks.head, model.gradient("lm_head.weight"), "head");
    expect_same_bits(hooks.layer, model.gradient("model.layers.1.mlp.down_proj.weight"), "layer");
  }
}

TEST(ModelSchedules, ForwardGivesTheLossOfTraining) {
  for (const ModelShape& shape : {tiny_shape(), tiny_gpt_shape()}) {
    Model model(shape, {.batch = batch_size, .seq = seq});
    const Batch batch = random_batch(batch_size, seq, 29, 60);
    const double trained = model.train({batch});
    EXPECT_EQ(model.evaluate(batch), trained);
    EXPECT_TRUE(model.peaks_as_planned());
    EXPECT_TRUE(model.stashes_are_empty());
  }
}

TEST(ModelSchedules, EvaluationHasNoDropout) {
  ModelShape with = untied_gpt_with_dropout(), without = with;
  without.hidden_dropout = without.attention_dropout = 0;
  Model one(with, {.batch = batch_size, .seq = seq}), other(without, {.batch = batch_size, .seq = seq});
  const Batch batch = random_batch(batch_size, seq, 29, 61);
  EXPECT_EQ(one.evaluate(batch), other.evaluate(batch));
  EXPECT_NE(one.train({batch}), other.train({batch}));
}

}  // namespace
}  // namespace tera::test
