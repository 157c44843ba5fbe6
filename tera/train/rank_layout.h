#pragma once
// The layout of one rank of a setup: its process groups, its blocks, its pipeline schedule and its shards. It is
// arithmetic alone, without communication or allocation, so any rank of any world can be laid out on any machine.

#include <vector>

#include "tera/config/setup.h"
#include "tera/models/build.h"
#include "tera/nn/context_parallel.h"
#include "tera/nn/expert_parallel.h"
#include "tera/parallel/groups.h"
#include "tera/parallel/stage_layout.h"
#include "tera/pipeline/schedules.h"
#include "tera/pipeline/stage_plan.h"

namespace tera {

// The layers of every pipeline stage, and the pipeline's schedules.
StageLayout stage_layout(const Setup& setup);
PipelineSchedule training_schedule(const Setup& setup);  // schedule of the largest step
PipelineSchedule training_schedule(const Setup& setup, int microbatches);
PipelineSchedule evaluation_schedule(const Setup& setup);

// The process groups of a rank.
Groups make_groups(const Setup& setup, int rank);

// The number of tensor-parallel ranks that hold replicas of the same key/value heads (GQA).
int kv_replicas(const Setup& setup);

// The schedules of one pipeline stage.
struct StageSchedules {
  StagePlan training, evaluation;
  std::vector<StagePlan> smaller;  // plans of steps with fewer microbatches
};
StageSchedules stage_schedules(const Setup& setup, int stage);
std::vector<StageSchedules> all_stage_schedules(const Setup& setup);  // schedules of all stages, in the time of one

struct RankLayout {
  RankLayout(const Setup& setup, int rank);
  RankLayout(const Setup& setup, int rank, StageSchedules schedules);  // schedules: of the rank's stage

  // The full model's norm_keys, under this rank's sharding, and its number of parameters.
  struct GlobalModel {
    std::vector<std::string> norm_keys;
    std::int64_t parameters = 0;
  };
  GlobalModel global_model(const Setup& setup) const;

  Groups groups;
  TensorParallel tp;
  ContextParallel cp;
  std::vector<ContextParallel> degrees;  // dynamic CP: ascending, each microbatch has one of them; otherwise cp alone
  ExpertParallel experts;
  std::vector<BlockRange> chunks;
  StagePlan training, evaluation;
  std::vector<StagePlan> smaller;
  Replicas replicas;
  FlatRules flat;
  bool has_loss = false;     // the last virtual stage is here
  bool counts_loss = false;  // the loss is here, and this is tensor-parallel rank 0
  ByKind<bool> counts_norm;  // this is the first of the replicas with the same gradients
};

}  // namespace tera
