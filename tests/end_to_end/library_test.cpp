// The example of docs/library.md: a custom block in a model of the library, planned, bound and trained by its parts.

#include <gtest/gtest.h>

#include <cmath>

#include "tera/backend/plan/plan_ops.h"
#include "tera/models/build.h"
#include "tera/nn/linear.h"
#include "tera/nn/norm.h"
#include "tera/pipeline/pipeline.h"
#include "tera/train/backend.h"
#include "tests/end_to_end/training_run.h"

namespace tera::test {
namespace {

// --- as in docs/library.md ---

struct AdapterSaved final : Saved {
  NormStats stats;
  Tensor normed;     // [T,H]
  Tensor low, dlow;  // [T,R]
};

// y = x + up(down(norm(x))), R channels in between.
class Adapter final : public BlockOf<AdapterSaved> {
 public:
  Adapter(ParamStore& params, const std::string& name, std::int64_t hidden, std::int64_t low)
      : norm_(params, {.name = name + ".norm", .size = hidden}),
        down_(params, {.name = name + ".down", .in = hidden, .out = {{name + ".down", low}}, .init_std = 0.1f}),
        up_(params, {.name = name + ".up", .in = low, .out = {{name + ".up", hidden}}, .init_std = 0.1f}) {}
  const char* kind() const override { return "adapter"; }

 private:
  void f(Run& run, AdapterSaved& s, const Tensor& x, const Tensor& y) override {
    s.stats = norm_.take_stats(run, x, "adapter.stats");
    s.normed = run.stash.take(Life::f_to_w, x.shape, x.dtype, "adapter.normed");
    s.low = run.stash.take(Life::f_to_w, shape(x.dim(0), down_.out_features()), x.dtype, "adapter.low");
    norm_.forward(run, x, s.normed, s.stats);
    down_.forward(run, s.normed, s.low);
    up_.forward(run, s.low, y, /*residual=*/x);
  }
  void b(Run& run, AdapterSaved& s, const Tensor& x, const Tensor& dy, const Tensor& dx) override {
    s.dlow = run.stash.take(Life::b_to_w, s.low.shape, x.dtype, "adapter.dlow");
    const Tensor dnormed = run.scratch.take(x.shape, x.dtype, "adapter.dnormed");
    up_.backward_input(run, dy, s.dlow);
    down_.backward_input(run, s.dlow, dnormed);
    norm_.backward(run, dnormed, x, s.stats, /*residual=*/dy, dx);
  }
  void w(Run& run, AdapterSaved& s, const Tensor& dy) override {
    up_.backward_weight(run, s.low, dy);
    down_.backward_weight(run, s.normed, s.dlow);
  }

  Norm norm_;
  Linear down_, up_;
};

// --- end ---

// A model with an adapter before its head, in memory that was planned, and one fixed batch.
class AdaptedModel {
 public:
  AdaptedModel() : params_(DType::f32, {"model.*", "lm_head*"}), blocks_(build_blocks(make_spec(model_, 1), params_)) {
    blocks_.insert(blocks_.end() - 1, std::make_unique<Adapter>(params_, "adapter", model_.hidden, 8));
    stage_ = {.chunks = {blocks_}, .training = plan_alone(one_stage(1)), .hidden = model_.hidden};
    params_.lay_out();
    Arena measured = Arena::measuring();
    take_state(measured);
    PlanOps plan(*backend_.rules);
    StageMemory rehearsed = StageMemory::measuring(stage_);
    Pipeline(plan, stage_, rehearsed).step({&mb_, 1});

    Arena state(backend_.device->allocate(measured.peak()));
    take_state(state);
    memory_ = rehearsed.allocate_on(*backend_.device);
    ops_.bind_workspace(backend_.device->allocate(plan.workspace_peak()));
    params_.initialize(ops_, 1);
    fill_batch();
  }

  // Returns the loss; gradients accumulate.
  double run() {
    Pipeline(ops_, stage_, memory_).step({&mb_, 1});
    double sum = 0;
    for (std::int64_t i = 0; i < rows; ++i) sum += mb_.token_loss.as<float>()[i];
    return sum / rows;
  }
  ParamStore& params() { return params_; }

 private:
  static constexpr std::int64_t rows = 32;

  void take_state(Arena& arena) {
    params_.bind({.weights = arena, .constants = arena, .masters = &arena, .grads = &arena});
    for (Tensor* ids : {&mb_.tokens, &mb_.targets, &mb_.positions}) *ids = arena.take(shape(rows), DType::i32, "ids");
    mb_.token_loss = arena.take(shape(rows), DType::f32, "losses");
    mb_.loss_scale = arena.take(shape(1), DType::f32, "scale");
  }
  void fill_batch() {
    for (std::int32_t i = 0; i < rows; ++i) {
      mb_.tokens.as<std::int32_t>()[i] = i * 7 % 61;
      mb_.targets.as<std::int32_t>()[i] = i * 11 % 61;
      mb_.positions.as<std::int32_t>()[i] = i % 16;
    }
    *mb_.loss_scale.as<float>() = 1.0f / rows;
  }

  ModelShape model_ = load_setup("tiny", {"model.init_method_std=0.3"}).model;
  Backend backend_ = make_backend({.device = DeviceChoice::cpu, .threads = 1});
  Ops& ops_ = *backend_.ops;
  ParamStore params_;
  Blocks blocks_;
  Stage stage_;
  MicroBatch mb_{.batch = 2};
  StageMemory memory_;
};

TEST(Library, OwnBlockHasTheGradientsOfFiniteDifferences) {
  struct Element {
    const char* name;
    int at;
    double gradient;
  };
  std::vector<Element> elements;
  for (const char* name : {"adapter.down.weight", "adapter.up.weight", "adapter.norm.weight"})
    for (const int at : {0, 5, 17}) elements.push_back({name, at, 0});
  AdaptedModel model;
  model.run();
  for (auto& element : elements) element.gradient = model.params().find(element.name).grad.as<float>()[element.at];
  for (const auto& [name, at, gradient] : elements) {
    float& weight = model.params().find(name).value.as<float>()[at];
    const float before = weight, step = 1e-2f;
    weight = before + step;
    const double above = model.run();
    weight = before - step;
    const double below = model.run();
    weight = before;
    const double expected = (above - below) / (2 * step);
    EXPECT_NEAR(gradient, expected, 1e-4 + 0.02 * std::abs(expected)) << name << " " << at;
  }
}

TEST(Library, OnlyTheAdapterIsTrained) {
  AdaptedModel model;
  for (const Param* param : model.params().by_name())
    EXPECT_EQ(static_cast<bool>(param->grad), param->spec.name.starts_with("adapter.")) << param->spec.name;
}

}  // namespace
}  // namespace tera::test
