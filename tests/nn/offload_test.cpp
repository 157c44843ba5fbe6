// Activation offload to the host: the same bits, less memory of the device by what was planned.

#include <gtest/gtest.h>

#include "tests/nn/block_checks.h"
#include "tests/nn/tiny_shape.h"
#include "tests/support/late_copy_ops.h"
#include "tests/support/model.h"

namespace tera::test {
namespace {

constexpr std::int64_t seq = 10, batch_size = 2;
constexpr OffloadShape everything{.attn_norm = true,
                                  .qkv_linear = true,
                                  .core_attn = true,
                                  .attn_proj = true,
                                  .mlp_norm = true,
                                  .mlp_fc1 = true,
                                  .mlp_act = true,
                                  .mlp_fc2 = true};

// There are enough layers for each offload buffer to be used by several.
ModelShape with_layers(ModelShape model, std::int64_t layers) {
  model.num_layers = layers;
  model.window.assign(static_cast<std::size_t>(layers), 0);
  return model;
}

ModelShape gpt_with_dropout() {
  ModelShape model = with_layers(tiny_gpt_shape(), 5);
  model.hidden_dropout = model.attention_dropout = 0.1f;
  return model;
}

ModelShape qk_normed() {
  ModelShape model = with_layers(tiny_shape(), 4);
  model.qk_norm = true;
  return model;
}

// A dense layer, then experts and one that all rows pass.
ModelShape with_experts(bool gate) {
  ModelShape model = with_layers(tiny_shape(), 5);
  model.family = &family_named("qwen3_moe");
  model.moe = MoeShape{.experts = 5,
                       .ffn = 16,
                       .layers = {false, true, true, true, true},
                       .router = {.topk = 2},
                       .shared_ffn = 12,
                       .shared_gate = gate};
  return model;
}

std::vector<Batch> random_batches(std::size_t microbatches) {
  std::vector<Batch> batches;
  for (std::size_t i = 0; i < microbatches; ++i) batches.push_back(random_batch(batch_size, seq, 29, 70 + i));
  return batches;
}

struct Result {
  double loss = 0, evaluated = 0;
  std::vector<float> gradients, logits;
};

Result run_schedule(const ModelShape& shape, const Schedule& schedule, bool late = false) {
  const std::size_t microbatches = 4;
  Model model(shape, {.schedule = schedule, .batch = batch_size, .seq = seq, .late_copies = late});
  const std::vector<Batch> batches = random_batches(microbatches);
  model.train(batches);
  Result result;
  result.evaluated = model.evaluate(batches[1]);
  result.loss = model.train(batches);
  result.gradients = model.all_gradients();
  result.logits = model.logits(batches[2]);
  EXPECT_TRUE(model.peaks_as_planned());
  EXPECT_TRUE(model.stashes_are_empty());
  return result;
}

void expect_same(const Result& with, const Result& without, const std::string& what) {
  EXPECT_EQ(with.loss, without.loss) << what;
  EXPECT_EQ(with.evaluated, without.evaluated) << what;
  expect_same_bits(with.gradients, without.gradients, what.c_str());
  expect_same_bits(with.logits, without.logits, what.c_str());
}

std::vector<std::pair<std::string, Schedule>> schedules() {
  using enum Act;
  return {
      {"one stage", one_stage(4)},
      {"1f1b", {{F, 0}, {F, 1}, {BW, 0}, {F, 2}, {BW, 1}, {F, 3}, {BW, 2}, {BW, 3}}},
      {"1f1b, three in flight", {{F, 0}, {F, 1}, {F, 2}, {BW, 0}, {F, 3}, {BW, 1}, {BW, 2}, {BW, 3}}},
      {"zero bubble", {{F, 0}, {F, 1}, {B, 0}, {F, 2}, {B, 1}, {W, 0}, {F, 3}, {B, 2}, {W, 1}, {B, 3}, {W, 2}, {W, 3}}},
      {"B and W apart",
       {{F, 0}, {F, 1}, {F, 2}, {F, 3}, {B, 0}, {B, 1}, {B, 2}, {B, 3}, {W, 0}, {W, 1}, {W, 2}, {W, 3}}},
      {"both kinds", {{F, 0}, {F, 1}, {BW, 0}, {B, 1}, {F, 2}, {W, 1}, {F, 3}, {BW, 2}, {B, 3}, {W, 3}}}};
}

TEST(Offload, ChangesNoBitInAnySchedule) {
  for (const ModelShape& shape : {with_layers(tiny_shape(), 6), gpt_with_dropout(), qk_normed(), with_experts(true)})
    for (const auto& [name, schedule] : schedules()) {
      const Result kept = run_schedule(shape, schedule);
      ModelShape offloaded = shape;
      offloaded.offload = everything;
      expect_same(run_schedule(offloaded, schedule), kept, name);
      expect_same(run_schedule(offloaded, schedule, /*late=*/true), kept, name + ", copies as late as they may be");
    }
}

void expect_no_change_for_any_module(const ModelShape& shape) {
  for (const auto& [name, schedule] : {schedules()[0], schedules()[3]}) {
    const Result kept = run_schedule(shape, schedule);
    for (bool OffloadShape::*module :
         {&OffloadShape::attn_norm, &OffloadShape::qkv_linear, &OffloadShape::core_attn, &OffloadShape::attn_proj,
          &OffloadShape::mlp_norm, &OffloadShape::mlp_fc1, &OffloadShape::mlp_act, &OffloadShape::mlp_fc2}) {
      ModelShape offloaded = shape;
      offloaded.offload.*module = true;
      expect_same(run_schedule(offloaded, schedule, /*late=*/true), kept, name);
    }
  }
}

TEST(Offload, ChangesNoBitForAnyModule) {
  expect_no_change_for_any_module(with_layers(tiny_shape(), 5));
  expect_no_change_for_any_module(with_experts(false));
}

TEST(Offload, GoesTogetherWithRecompute) {
  constexpr OffloadShape x_only{.attn_norm = true};
  OffloadShape selective = everything;
  selective.qkv_linear = selective.mlp_fc1 = selective.mlp_fc2 = false;
  const std::vector<std::pair<RecomputeShape, OffloadShape>> cases{
      {{.full = true}, x_only},
      {{.full = true, .layers = 2}, x_only},
      {{.full = true, .method = RecomputeMethod::block, .layers = 2}, everything},
      {{.layernorm = true, .activation = true}, selective}};
  for (const ModelShape& shape : {with_layers(tiny_shape(), 5), with_experts(true)})
    for (const auto& [name, schedule] : {schedules()[0], schedules()[1], schedules()[3]})
      for (const auto& [recompute, offload] : cases) {
        ModelShape both = shape;
        both.recompute = recompute;  // parameters lie in another order where layers are recomputed together
        const Result kept = run_schedule(both, schedule);
        both.offload = offload;
        expect_same(run_schedule(both, schedule, /*late=*/true), kept, name);
      }
}

// The device holds less by what is offloaded, but for the transfer buffers: two, for any number of layers and
// microbatches.
TEST(Offload, TheDeviceKeepsLessByWhatIsOnTheHost) {
  std::vector<std::size_t> buffers;
  for (const std::int64_t layers : {4, 9})
    for (const auto& [name, schedule] : schedules()) {
      ModelShape shape = with_layers(tiny_shape(), layers);
      const Model::Options options{.schedule = schedule, .batch = batch_size, .seq = seq};
      const Model kept(shape, options);
      shape.offload = everything;
      const Model offloaded(shape, options);
      EXPECT_EQ(kept.planned_host_bytes(), 0u);
      EXPECT_EQ(kept.offload_buffer_bytes(), 0u);
      EXPECT_GT(offloaded.planned_host_bytes(), 0u);
      EXPECT_EQ(kept.planned_bytes() - offloaded.planned_host_bytes() + offloaded.offload_buffer_bytes(),
                offloaded.planned_bytes())
          << name << ", " << layers << " layers";
      buffers.push_back(offloaded.offload_buffer_bytes());
    }
  for (const std::size_t bytes : buffers) EXPECT_EQ(bytes, buffers.front());
}

// Counted by hand for T=20, H=24, q and k and v 64 wide, F=40.
TEST(Offload, BytesByHand) {
  ModelShape shape = with_layers(tiny_shape(), 4);
  shape.offload = {.core_attn = true, .mlp_fc2 = true};
  const Model model(shape, {.schedule = one_stage(1), .batch = batch_size, .seq = seq});
  const std::size_t qkv = 20 * 64 * 4, act = align_up(20 * 40 * 4, Arena::alignment);
  EXPECT_EQ(model.planned_host_bytes(), 4 * (qkv + act));
  EXPECT_EQ(model.offload_buffer_bytes(), 2 * (qkv + act));
}

// T=20, H=24, K=2 rows of each token for experts of F=16 features, and one of F=12 that every token passes.
TEST(Offload, BytesOfExpertsByHand) {
  ModelShape shape = with_experts(false);
  shape.moe->layers[0] = true;
  const auto aligned = [](std::size_t floats) { return align_up(floats * 4, Arena::alignment); };
  const auto on_host = [&](const OffloadShape& offload) {
    shape.offload = offload;
    const Model model(shape, {.schedule = one_stage(1), .batch = batch_size, .seq = seq});
    EXPECT_EQ(model.offload_buffer_bytes() * 5, model.planned_host_bytes() * 2) << "two buffers, five layers";
    return model.planned_host_bytes();
  };
  EXPECT_EQ(on_host({.mlp_fc1 = true}), 5 * aligned(20 * 24));
  EXPECT_EQ(on_host({.mlp_act = true}), 5 * (aligned(20 * 2 * 32) + aligned(20 * 24)));
  EXPECT_EQ(on_host({.mlp_fc2 = true}), 5 * (aligned(20 * 2 * 16) + aligned(20 * 12)));
}

// After the forward of one microbatch, the last two blocks are still in the buffers and are not prefetched.
TEST(Offload, PrefetchesOnlyWhatLeftTheBuffers) {
  ModelShape shape = with_layers(tiny_shape(), 6);
  shape.offload = {.mlp_act = true};
  Model model(shape, {.schedule = one_stage(4), .batch = batch_size, .seq = seq, .late_copies = true});
  const auto& ops = dynamic_cast<const LateCopyOps&>(model.ops());
  model.train(random_batches(4));
  EXPECT_EQ(ops.copies_to_host(), 4 * 6u);
  EXPECT_EQ(ops.copies_from_host(), 4 * (6 - 2u));
}

}  // namespace
}  // namespace tera::test
