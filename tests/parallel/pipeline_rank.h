#pragma once
// One rank of a pipeline on the CPU backend, for tests: it holds the parameters of the whole model but plays only the
// blocks of its virtual stages. And the same model played by plain loops over its blocks, with nothing of the engine.

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

// Weights, gradients and inputs of a whole model: what every rank has, and the reference too.
class WholeModel {
 public:
  WholeModel(const ModelShape& shape, int microbatches);

  // Puts the batch there, and zeros into losses and gradients.
  void reset();
  std::vector<float> gradients();
  std::vector<float> losses();  // of all tokens of all microbatches

  const ModelShape shape;
  cpu::CpuDevice device;
  cpu::CpuOps ops;
  ParamStore params;
  Blocks blocks;
  std::vector<MicroBatch> batch, evaluation_batch;  // the same memory; one of them without dropout and gradients

 private:
  void bind(Arena& arena);
};

// Plain loops: each microbatch through all blocks and back, all of it kept.
void play_plainly(WholeModel& model);
void evaluate_plainly(WholeModel& model);

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

  void train(ParamWatch& watch) { pipeline_->step(model_.batch, watch); }
  void evaluate(ParamWatch& watch) { pipeline_->forward(model_.evaluation_batch, watch); }

  WholeModel& model() { return model_; }
  const Stage& stage() const { return stage_; }
  // Names of the kinds of arenas whose real peaks are not the planned ones, or that hold something between steps.
  std::string wrong_memory() const;
  std::int64_t planned_messages() const { return planned_messages_; }  // sent or received in a step and an evaluation
  // Those with arenas of different sizes: a plan gives each the room of the largest.
  std::string uneven_pools() const;

 private:
  void rehearse();

  WholeModel model_;
  Stage stage_;
  StageMemory measured_, real_;
  std::unique_ptr<Pipeline> pipeline_;
  std::int64_t planned_messages_ = 0;
};

}  // namespace tera::test
