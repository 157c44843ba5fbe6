#pragma once
// Executes steps and evaluations on one Ops: pipeline, replicas, optimizer and features, in their order. A rehearsal
// has an engine on PlanOps and measuring memory, a run one on the device; both make the same calls.

#include "tera/models/build.h"
#include "tera/optim/data_parallel.h"
#include "tera/optim/optimizer.h"
#include "tera/pipeline/pipeline.h"
#include "tera/train/step/batch_inputs.h"

namespace tera {

class StepEngine {
 public:
  struct Parts {  // parts of a rank; all outlive the engine
    const Setup& setup;
    RankLayout& layout;
    ParamStore& params;
    const std::vector<Blocks>& chunks;
    const Stage& stage;
    Optimizer& optimizer;
    const BatchInputs& inputs;
    const StepFeatures& features;
  };
  StepEngine(Ops& ops, const Parts& parts, StageMemory& memory);

  // Gradient accumulation over the first microbatches, then reduction over the replicas.
  void forward_backward(std::int64_t microbatches);
  void update();
  void evaluate();

  DataParallel& replicas() { return replicas_; }

 private:
  StepRun run_of(std::int64_t microbatches) { return {ops_, parts_.layout.groups, microbatches}; }

  Ops& ops_;
  Parts parts_;
  DataParallel replicas_;
  Pipeline pipeline_;
};

}  // namespace tera
