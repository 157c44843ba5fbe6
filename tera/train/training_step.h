#pragma once
// One training step of one rank, with gradient accumulation over its microbatches: its shard of the model, its memory
// plan, its inputs, the engine, the optimizer and the features (step/step_feature.h), put together. Use it as it is, or
// take its parts and write a loop of your own (docs/library.md).
//
//   TrainingStep step(setup, rank);
//   step.bind(backend, world);           // rehearses, allocates once, joins the other ranks, draws the initial weights
//   step.load(i, batch, scale) ...       // every microbatch of this rank
//   step.run(lr);                        // alternative: forward_backward(), look at the gradients, update(lr)

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tera/checkpoint/checkpoint.h"
#include "tera/plan/memory_plan.h"
#include "tera/train/backend.h"
#include "tera/train/step/loss_scaling.h"
#include "tera/train/step/step_engine.h"
#include "tera/train/step/step_graph.h"

namespace tera {

class PlanOps;

// Every rank gives its votes with a step, and all ranks see the totals at the same step.
struct StepVotes {
  bool stop = false;     // the run should end
  bool written = false;  // this rank's part of a checkpoint is on the disk
};
struct VoteCounts {
  double stop = 0, written = 0;  // how many ranks voted so
};
VoteCounts votes_of(const StepReading& reading);

class TrainingStep {
 public:
  explicit TrainingStep(const Setup& setup, int rank = 0);
  // schedules: of the rank's stage. more: features beside those of the setup.
  TrainingStep(const Setup& setup, int rank, StageSchedules schedules, StepFeatures::List more = {});

  // The step, rehearsed without memory: exact for everything that bind() allocates.
  MemoryPlan plan(const WorkspaceRules& rules);
  // What the rehearsal has counted.
  struct Planned {
    double flops = 0;              // two per multiply-add, of GEMMs and attention in one step
    std::vector<Traffic> traffic;  // that this rank sends in a step, group by group in the order of Groups::all()
  };
  const Planned& planned() const { return planned_; }

  // world: the communicator of all ranks of the setup, on backend.ops; it outlives the step.
  void bind(Backend& backend, Comm& world);
  void bind(Backend& backend);  // a world of one

  // Copies a microbatch to the device. Under context parallelism all ranks give the full sequences, and each uploads
  // its own zigzag chunks. With dynamic context parallelism (ParallelShape::dynamic_cp) the number of rows tells the
  // degree: as many as one rank has, or as 2 have, ...; the ranks that share them give the same rows. The scales are
  // the weights in the gradient: `scale` of a token's loss, `aux_scale` of the microbatch's auxiliary losses, where the
  // model has any, `mtp_scales` of the MTP losses, by depth. A microbatch of scale 0 is not trained on and may lack MTP
  // rows.
  void load(std::int64_t microbatch, const BatchSpans& host, float scale, float aux_scale = 0,
            std::span<const float> mtp_scales = {});
  // Gradient accumulation over all loaded microbatches, then reduction over the ranks; gradients of an earlier call are
  // overwritten. During batch size ramp-up and with dynamic context parallelism only the first `microbatches` run.
  using Microbatches = std::optional<std::int64_t>;  // none: as many as a full step has
  void forward_backward(Microbatches microbatches = {});
  // Clips the gradients and updates the weights.
  void update(const LearningRates& rates);
  // forward_backward() and update(), replayed as a CUDA graph where the device can (StepGraph).
  void run(const LearningRates& rates, Microbatches microbatches = {});
  std::string take_remark() { return graph_.take_remark(); }
  // The all-gather of weights may, with overlap_param_gather, still be in flight after update(); blocks wait for it,
  // other readers of the weights call this.
  void wait_for_weights() { engine_->replicas().wait_for_weights(); }

  // Forward only: the sum of the token losses of all loaded microbatches and ranks, and how many ranks want to stop.
  struct Evaluated {
    double loss_sum = 0, stop = 0;
  };
  Evaluated evaluate(bool stop = false);

  // The numbers of the step: loss_sum, grad_norm, and those of features. read_back() only starts the asynchronous copy
  // to the host, so that the next step can be enqueued before result() waits for it; at most two are in flight.
  struct Reading {
    Ticket ticket;
    std::size_t slot = 0;
  };
  Reading read_back(const StepVotes& votes = {});
  StepReading result(const Reading& reading);

  // This rank's shards of the model and the optimizer state. Valid while bound.
  ModelState state() const { return {list_tensors(setup_.model), params_, &optimizer_}; }
  // Resumes from a checkpoint of any layout; a collective call. UserError where its tensors do not match the model.
  void load_checkpoint(const Checkpoint& checkpoint, Checkpoint::Take take,
                       const std::optional<VerifyShard>& verified = {});

  ParamStore& params() { return params_; }
  const ParamStore& params() const { return params_; }
  std::int64_t count_parameters() const { return global_model_.parameters; }  // size of the full model
  const RankLayout& layout() const { return layout_; }
  const MemoryPlan& memory() const { return memory_.plan(); }
  const StageMemory& stage_memory() const { return stage_memory_; }  // has the measured peaks of real steps
  const StepFeatures& features() const { return features_; }
  const LossScaling& scaling() const { return *scaling_; }  // count of updates, loss scale

 private:
  struct Arenas {
    Arena weights, constants, masters, grads, optimizer, inputs;
  };
  StepEngine::Parts parts();
  void bind_memory(Arenas& arenas);
  MemoryPlan rehearse(PlanOps& ops);
  void rehearse_steps(PlanOps& ops, StepEngine& engine);
  void prepare_kernels(const PlanOps& rehearsal);
  void join(const PlanOps& rehearsal, Comm& world);
  void make_engine();

  Setup setup_;
  DType compute_;
  RankLayout layout_;
  RankLayout::GlobalModel global_model_;
  ParamStore params_;
  std::vector<Blocks> chunks_;
  Optimizer optimizer_;
  Stage stage_;
  BatchInputs inputs_;
  StepFeatures features_;
  LossScaling* scaling_;                   // one of the features
  std::size_t votes_ = 0, grad_norm_ = 0;  // ids of numbers
  std::size_t readings_ = 0;

  PlannedMemory memory_;
  StageMemory stage_memory_;
  Tensor agreement_;             // i64 [ranks]
  std::unique_ptr<Comm> alone_;  // the world of one
  std::unique_ptr<StepEngine> engine_;
  StepGraph graph_;
  Planned planned_;
  Ops* ops_ = nullptr;
};

}  // namespace tera
