#pragma once
// A step feature: all that one concern adds to a training step, in one class: what it keeps in memory, what it does
// before the microbatches and after backward, whether it vetoes the update, which numbers it computes, and what a
// checkpoint keeps of it. TrainingStep has a list of features and knows none of them.
//
//   set-up   describe -> allocate_host -> bind (twice: to measure, to bind) -> attach -> start
//   step     load -> begin_step | F, B, W of all microbatches | after_backward | update, or skipped | after_update
//   host     read, and report to the log: when the numbers have arrived, usually one step later
//
// Calls on Ops are the same in every step, so that a CUDA graph can replay them, and the same on all ranks of a group
// where they communicate. None of the calls of a step allocates.

#include <memory>
#include <span>
#include <vector>

#include "tera/base/error.h"
#include "tera/checkpoint/manifest.h"
#include "tera/data/batching/batch_loader.h"
#include "tera/nn/run.h"
#include "tera/parallel/groups.h"
#include "tera/tensor/device.h"
#include "tera/train/sinks/metrics.h"
#include "tera/train/step/loss_weights.h"
#include "tera/train/step/step_scalars.h"
#include "tera/train/step/step_vetoes.h"

namespace tera {

// What features share: numbers of a step, weights of losses, vetoes.
struct StepBoard {
  StepScalars scalars;
  LossWeights weights;
  StepVetoes vetoes;
};

// Features that are built in, in the order of their calls; others go between or behind them.
struct FeatureOrder {
  static constexpr int loss_scale = 100, token_loss = 200, mtp = 300, router_state = 400, expert_dispatch = 500,
                       others = 1000;
};

// A microbatch as it is loaded: its rows on this rank, and the weights of its losses in the gradient.
struct LoadedMicroBatch {
  std::int64_t index = 0;
  const BatchSpans& rows;
  float scale = 0;                         // weight of a token's loss; 0: it is not trained on
  float aux_scale = 0;                     // weight of its auxiliary losses
  std::span<const float> mtp_scales = {};  // weights of the MTP losses, by depth
};

// A step or an evaluation, after its last microbatch.
struct StepRun {
  Ops& ops;
  Groups& groups;
  std::int64_t microbatches = 0;
};

struct FeatureArenas {
  Arena &inputs, &optimizer;
};

// What the host knows of a step that is reported.
struct ReportedStep {
  std::int64_t step = 0, samples = 0;
  const BatchCounts& counts;  // targets of the global batch
};

class StepFeature {
 public:
  explicit StepFeature(int order) : order_(order) {}
  StepFeature(const StepFeature&) = delete;
  StepFeature& operator=(const StepFeature&) = delete;
  virtual ~StepFeature() = default;

  int order() const { return order_; }  // fixed, the same on all ranks; no two features have the same

  // Declares numbers, kinds of losses and vetoes; the board outlives the feature.
  virtual void describe(StepBoard& /*board*/) {}
  virtual void allocate_host(Device& /*device*/) {}
  virtual void bind(const FeatureArenas& /*arenas*/) {}
  // What blocks see of the feature in this microbatch; called for those of training and of evaluation.
  virtual void attach(std::int64_t /*index*/, MicroBatch& /*batch*/) {}
  virtual void start(Ops& /*ops*/) {}

  virtual void load(Ops& /*ops*/, const LoadedMicroBatch& /*loaded*/) {}
  virtual void begin_step(Ops& /*ops*/) {}
  virtual void after_backward(const StepRun& /*run*/) {}
  // grad_factor: f32 [1], not finite where the update was skipped.
  virtual void after_update(Ops& /*ops*/, const Tensor& /*grad_factor*/) {}
  virtual void after_evaluation(const StepRun& /*run*/) {}

  // On the host, when the numbers of a step or an evaluation have arrived.
  virtual void read(const StepReading& /*reading*/, StepScalars::When /*of*/) {}
  // Adds what the log has of it, beyond numbers that are declared as logged.
  virtual void report(const StepReading& /*reading*/, const ReportedStep& /*step*/, MetricList& /*metrics*/) {}

  virtual void keep(CheckpointSource& /*source*/) const {}
  virtual void resume(Ops& /*ops*/, const CheckpointSource& /*source*/) {}

 private:
  int order_;
};

// All features of a step, in their order.
class StepFeatures {
 public:
  using List = std::vector<std::unique_ptr<StepFeature>>;
  explicit StepFeatures(List features);        // every feature describes itself
  StepFeatures(const StepFeatures&) = delete;  // features keep the board's address
  StepFeatures& operator=(const StepFeatures&) = delete;

  StepBoard& board() { return board_; }
  const StepBoard& board() const { return board_; }

  template <class Call>
  void each(const Call& call) const {
    for (const auto& feature : features_) call(*feature);
  }
  // The feature of this type, which there must be.
  template <class Feature>
  Feature& get() const {
    for (const auto& feature : features_)
      if (auto* found = dynamic_cast<Feature*>(feature.get())) return *found;
    fail("a step lacks a feature");
  }
  // Features' reports, then the numbers that are logged as they are read.
  void report(const StepReading& reading, const ReportedStep& step, MetricList& metrics) const;
  void keep(CheckpointSource& source) const {
    each([&](const StepFeature& feature) { feature.keep(source); });
  }

 private:
  List features_;
  StepBoard board_;
};

}  // namespace tera
