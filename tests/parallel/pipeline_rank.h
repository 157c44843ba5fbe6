#pragma once
// One rank of a pipeline on the CPU backend, for tests: it holds the parameters of the global model but runs only the
// blocks of its virtual stages. The reference is the same model run by plain loops over its blocks, with nothing of the
// engine.

#include <memory>
#include <string>
#include <vector>

#include "tera/backend/cpu/cpu_device.h"
#include "tera/backend/cpu/cpu_ops.h"
#include "tera/comm/comm.h"
#include "tera/models/build.h"
#include "tera/pipeline/pipeline.h"
#include "tests/support/model.h"

namespace tera::test {

inline constexpr std::int64_t pipeline_batch = 2, pipeline_seq = 6;

// Weights, gradients and inputs of a global model, which every rank and the reference have.
class GlobalModel {
 public:
  GlobalModel(const ModelShape& shape, int microbatches);

  // Puts the batch there, and zeros into losses and gradients.
  void reset();
  std::vector<float> gradients();
  std::vector<float> losses();  // token losses of all microbatches

  const ModelShape shape;
  cpu::CpuDevice device;
  cpu::CpuOps ops;
  ParamStore params;
  Blocks blocks;
  std::vector<MicroBatch> batch, evaluation_batch;  // memory of both is shared; evaluation has no dropout, no gradients

 private:
  void bind(Arena& arena);
};

// Plain loops: each microbatch through all blocks and back, all of it kept.
void run_plainly(GlobalModel& model);
void evaluate_plainly(GlobalModel& model);

struct PipelineCase {
  PipelineSchedule training;
  std::vector<int> layers{};  // per virtual stage; as even as can be when empty
  bool overlap = true;

  std::string describe() const;
};

class PipelineRank {
 public:
  // Rehearses on a stub of a Comm that has no data, then allocates. Without pp there is only the rehearsal.
  PipelineRank(const ModelShape& shape, const PipelineCase& one, int rank, Comm* pp);

  void train(ParamHooks& hooks) { pipeline_->step(model_.batch, hooks); }
  void evaluate(ParamHooks& hooks) { pipeline_->forward(model_.evaluation_batch, hooks); }

  GlobalModel& model() { return model_; }
  const Stage& stage() const { return stage_; }
  // Names of the kinds of arenas whose real peaks are not the planned ones, or that hold something between steps.
  std::string wrong_memory() const;
  std::int64_t planned_messages() const { return planned_messages_; }  // sent or received in a step and an evaluation
  // Names of pools with arenas of different sizes: a plan gives each the size of the largest.
  std::string uneven_pools() const;

 private:
  void rehearse();

  GlobalModel model_;
  Stage stage_;
  StageMemory measured_, real_;
  std::unique_ptr<Pipeline> pipeline_;
  std::int64_t planned_messages_ = 0;
};

}  // namespace tera::test
