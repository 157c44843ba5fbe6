#pragma once
// What follows from a setup for one rank: who it is, which blocks it holds, what it plays, what it keeps. Arithmetic
// alone; nobody is asked and nothing is allocated, so any rank of any world can be laid out anywhere.

#include <vector>

#include "tera/comm/groups.h"
#include "tera/config/setup.h"
#include "tera/models/build.h"
#include "tera/nn/context_parallel.h"
#include "tera/nn/expert_parallel.h"
#include "tera/pipeline/schedules.h"
#include "tera/pipeline/stage_layout.h"
#include "tera/pipeline/stage_plan.h"

namespace tera {

// Of the whole pipeline, as the setup asks.
StageLayout stage_layout(const Setup& setup);
PipelineSchedule training_schedule(const Setup& setup);  // of the largest steps
PipelineSchedule training_schedule(const Setup& setup, int microbatches);
PipelineSchedule evaluation_schedule(const Setup& setup);

// The groups of a rank, as the setup asks.
Groups make_groups(const Setup& setup, int rank);

// Tensor-parallel ranks that hold the same key/value heads.
int kv_replicas(const Setup& setup);

// What a stage of the pipeline plays.
struct StageSchedules {
  StagePlan training, evaluation;
  std::vector<StagePlan> smaller;  // of steps with fewer microbatches
};
StageSchedules stage_schedules(const Setup& setup, int stage);
std::vector<StageSchedules> all_stage_schedules(const Setup& setup);  // in the time of one

struct RankLayout {
  RankLayout(const Setup& setup, int rank);
  RankLayout(const Setup& setup, int rank, StageSchedules schedules);  // those of the rank's stage

  // The whole model's norm_keys, in the cut of this rank, and its number of parameters.
  struct WholeModel {
    std::vector<std::string> norm_keys;
    std::int64_t parameters = 0;
  };
  WholeModel whole_model(const Setup& setup) const;

  Groups groups;
  TensorParallel tp;
  ContextParallel cp;
  std::vector<ContextParallel> degrees;  // of which each microbatch has one, ascending; else cp alone
  ExpertParallel experts;
  std::vector<BlockRange> chunks;
  StagePlan training, evaluation;
  std::vector<StagePlan> smaller;
  Replicas replicas;
  FlatRules flat;
  bool has_loss = false;     // the last virtual stage is here
  bool counts_loss = false;  // and of the tensor-parallel ranks that have it, this is the first
  ByKind<bool> counts_norm;  // of replicas with the same gradients, this is the first
};

}  // namespace tera
