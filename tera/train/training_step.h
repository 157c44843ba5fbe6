#pragma once
// One training step of one rank: a model, its memory, the engine and the optimizer, put together. Use it as it is, or
// take its parts and write a loop of your own (docs/library.md).
//
//   TrainingStep step(setup);
//   step.bind(backend);                  // rehearses, allocates once, draws the initial weights
//   step.load(i, batch, scale) ...       // every microbatch
//   step.forward_backward();
//   step.update(lr);

#include "tera/config/setup.h"
#include "tera/data/batch_loader.h"
#include "tera/models/build.h"
#include "tera/optim/optimizer.h"
#include "tera/pipeline/pipeline.h"
#include "tera/train/backend.h"
#include "tera/train/memory_plan.h"

namespace tera {

class PlanOps;

class TrainingStep {
 public:
  explicit TrainingStep(const Setup& setup);

  // The step, rehearsed without memory: exact for everything that bind() allocates.
  MemoryPlan plan(const WorkspaceRules& rules);
  // FLOPs (two per multiply-add) of matrix products and attention in one step, counted in the rehearsal.
  double planned_flops() const { return planned_flops_; }

  void bind(Backend& backend);

  // Copies a microbatch to the device. scale: what a token's loss counts in the gradient.
  void load(std::int64_t microbatch, const BatchSpans& host, float scale);
  // Gradients of all loaded microbatches accumulate.
  void forward_backward();
  // Clips, updates, clears the gradients.
  void update(double lr);
  // Sum of the token losses of a microbatch loaded into slot 0, without gradients.
  double evaluate();

  // For the log: sum of token losses over all microbatches, and the norm of the gradient. read_back() only starts to
  // bring them to the host, so that the next step can be enqueued before result() waits for them; at most two at a
  // time.
  struct Reading {
    Ticket ticket;
    std::size_t slot = 0;
  };
  struct Result {
    double loss_sum = 0;
    float grad_norm = 0;
  };
  Reading read_back();
  Result result(const Reading& reading);

  ParamStore& params() { return params_; }
  std::int64_t count_parameters() const { return params_.count_elements(); }
  const MemoryPlan& memory() const { return memory_.plan(); }
  const StageMemory& stage_memory() const { return stage_memory_; }  // what a step has really taken
  Ops& ops() { return *ops_; }
  std::int64_t updates() const { return updates_; }

 private:
  struct Inputs {  // of one microbatch
    Tensor tokens, targets, positions, rows, token_loss, loss_scale;
  };
  void bind_inputs(Arena& arena);
  MicroBatch microbatch(const Inputs& inputs, bool training) const;
  void play(Ops& ops, Pipeline& pipeline);
  void sum_losses(Ops& ops);
  void play_evaluation(Ops& ops, Pipeline& pipeline);
  MemoryPlan rehearse(PlanOps& ops);

  Setup setup_;
  DType compute_;
  ParamStore params_;
  Blocks blocks_;
  Optimizer optimizer_;
  Stage stage_;

  std::vector<Inputs> inputs_;
  std::vector<MicroBatch> batch_;
  Tensor loss_sum_;              // f64 [1]
  std::span<Result> read_back_;  // host memory that the device writes
  std::size_t readings_ = 0;
  PlannedMemory memory_;
  StageMemory stage_memory_;
  std::unique_ptr<Pipeline> pipeline_;
  Ops* ops_ = nullptr;
  std::int64_t updates_ = 0;
  double planned_flops_ = 0;
};

// Model FLOPs per token, forward and backward: 6 per parameter of a matrix product (output head in, input embedding
// out) and 6 * L * S * heads * head_dim for causal attention.
double model_flops_per_token(const ModelShape& model, std::int64_t seq_length);

}  // namespace tera
