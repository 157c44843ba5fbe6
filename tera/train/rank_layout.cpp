#include "tera/train/rank_layout.h"

#include <algorithm>

#include "tera/base/error.h"
#include "tera/optim/optimizer.h"

namespace tera {
namespace {

Placement placement(const ParallelShape& parallel) {
  const bool v = parallel.schedule == PipelineScheduleKind::zero_bubble_v && parallel.mesh.pp > 1;
  return {.stages = parallel.mesh.pp, .chunks = parallel.chunks, .kind = v ? PlacementKind::v : PlacementKind::loop};
}

int microbatches(const Setup& setup) { return static_cast<int>(setup.batch.num_microbatches); }

Replica replica_in(const Comm& group) { return {group.rank(), group.size()}; }

FlatRules flat_rules(const ParallelShape& parallel, const Groups& groups, const Replicas& replicas) {
  const bool several = replicas.dense.count > 1 || replicas.expert.count > 1;
  const Sharding sharding = several ? parallel.sharding : Sharding::no_shard;
  const bool cut_grads = sharding == Sharding::optim_grads || sharding == Sharding::optim_grads_params;
  return {.bucket_size = several ? parallel.bucket_size : 0,
          .bucket_per_block = cut_grads,
          .shards = sharding == Sharding::no_shard ? Replicas{} : replicas,
          .keep_grads = !cut_grads,
          .keep_weights = sharding != Sharding::optim_grads_params,
          .global_model = groups.pp.size() == 1 && groups.ep.size() == 1};
}

}  // namespace

StageLayout stage_layout(const Setup& setup) {
  const StageRequest& request = setup.parallel.stages;
  return place_layers({.placement = placement(setup.parallel),
                       .num_layers = static_cast<int>(setup.model.num_layers),
                       .mtp_num_layers = static_cast<int>(setup.model.mtp_layers),
                       .num_layers_in_first_pipeline_stage = request.first_layers,
                       .num_layers_in_last_pipeline_stage = request.last_layers,
                       .account_for_embedding_in_pipeline_split = request.count_embedding,
                       .account_for_loss_in_pipeline_split = request.count_loss,
                       .pipeline_model_parallel_layout = request.layout});
}

PipelineSchedule training_schedule(const Setup& setup) {
  return training_schedule(setup, static_cast<int>(setup.batch.largest_step()));
}

PipelineSchedule training_schedule(const Setup& setup, int batches) {
  const ParallelShape& parallel = setup.parallel;
  const int stages = parallel.mesh.pp;
  const bool overlap = parallel.overlap_expert_comm;
  if (stages == 1 && overlap) return one_f_one_b(1, batches, true);
  if (stages == 1) return {.placement = {}, .microbatches = batches, .ranks = {one_stage(batches)}};
  switch (parallel.schedule) {
    case PipelineScheduleKind::automatic:
    case PipelineScheduleKind::one_f_one_b: return one_f_one_b(stages, batches, overlap);
    case PipelineScheduleKind::interleaved:
      return interleaved(stages, parallel.chunks, batches, parallel.group_size, overlap);
    case PipelineScheduleKind::zero_bubble: return zero_bubble_h1(stages, batches, {}, overlap);
    case PipelineScheduleKind::zero_bubble_v: return zero_bubble_v(stages, batches, {}, overlap);
  }
  fail("there is no such schedule");
}

PipelineSchedule evaluation_schedule(const Setup& setup) {
  return forward_only(placement(setup.parallel), microbatches(setup));
}

int kv_replicas(const Setup& setup) {
  return static_cast<int>(setup.parallel.mesh.tp > setup.model.kv_heads ? setup.parallel.mesh.tp / setup.model.kv_heads
                                                                        : 1);
}

Groups make_groups(const Setup& setup, int rank) {
  std::vector<int> parts;  // degrees between: one rank needs no group, and all ranks share that of cp
  for (const int degree : setup.parallel.context_degrees())
    if (degree > 1 && degree < setup.parallel.mesh.cp) parts.push_back(degree);
  return {MeshPlan(setup.parallel.mesh), rank, kv_replicas(setup), parts};
}

StageSchedules stage_schedules(const Setup& setup, int stage) {
  StageSchedules schedules{
      make_stage_plan(training_schedule(setup), stage), make_stage_plan(evaluation_schedule(setup), stage), {}};
  for (const std::int64_t fewer : setup.batch.smaller_steps())
    schedules.smaller.push_back(make_stage_plan(training_schedule(setup, static_cast<int>(fewer)), stage));
  return schedules;
}

std::vector<StageSchedules> all_stage_schedules(const Setup& setup) {
  std::vector<StagePlan> training = make_stage_plans(training_schedule(setup));
  std::vector<StagePlan> evaluation = make_stage_plans(evaluation_schedule(setup));
  std::vector<StageSchedules> all;
  for (std::size_t i = 0; i < training.size(); ++i)
    all.push_back({std::move(training[i]), std::move(evaluation[i]), {}});
  for (const std::int64_t fewer : setup.batch.smaller_steps()) {
    std::vector<StagePlan> plans = make_stage_plans(training_schedule(setup, static_cast<int>(fewer)));
    for (std::size_t i = 0; i < plans.size(); ++i) all[i].smaller.push_back(std::move(plans[i]));
  }
  return all;
}

RankLayout::RankLayout(const Setup& setup, int rank)
    : RankLayout(setup, rank, stage_schedules(setup, MeshPlan(setup.parallel.mesh).coord(rank).pp)) {}

RankLayout::RankLayout(const Setup& setup, int rank, StageSchedules schedules)
    : groups(make_groups(setup, rank)),
      tp{.group = &groups.tp, .sequence = setup.parallel.sequence_parallel},
      cp(groups.cp, setup.batch.micro_batch * (setup.batch.seq_length / setup.parallel.mesh.cp),
         setup.parallel.cp_comm),
      experts{.ep = &groups.ep,
              .etp = &groups.etp,
              .group = &groups.etp_ep,
              .same_rows = setup.model.moe && !cuts_expert_rows(setup.parallel, *setup.model.moe),
              .first_rank = MeshPlan(setup.parallel.mesh).color(Axis::etp_ep, rank)},
      training(std::move(schedules.training)),
      evaluation(std::move(schedules.evaluation)),
      smaller(std::move(schedules.smaller)),
      replicas{replica_in(groups.dp_cp), replica_in(groups.edp)},
      flat(flat_rules(setup.parallel, groups, replicas)) {
  for (const int degree : setup.parallel.context_degrees()) {
    const auto part = std::ranges::find(groups.cp_subgroups, degree, &PlannedComm::size);
    if (degree == cp.size())
      degrees.push_back(cp);
    else
      degrees.push_back(degree == 1 ? ContextParallel() : ContextParallel(*part, cp.rows_each.front(), cp.comm));
  }
  const StageLayout stages = stage_layout(setup);
  const int pp = groups.pp.rank();
  for (int chunk = 0; chunk < stages.placement.chunks; ++chunk) {
    const StageBlocks& blocks = stages.of(pp, chunk);
    chunks.push_back({.embedding = blocks.embedding,
                      .first_layer = blocks.first_layer,
                      .layers = blocks.layers,
                      .head = blocks.loss});
    has_loss = has_loss || blocks.loss;
  }
  counts_loss = has_loss && groups.tp.rank() == 0;
  counts_norm = {flat.shards.dense.count > 1 || replicas.dense.index == 0,
                 flat.shards.expert.count > 1 || replicas.expert.index == 0};
}

RankLayout::GlobalModel RankLayout::global_model(const Setup& setup) const {
  ParamStore sharded(DType::f32, setup.model.freeze), full(DType::f32, setup.model.freeze);
  const ModelSpec spec = make_spec(setup.model, 0);
  build_blocks(spec, full);
  full.lay_out();  // freeze patterns may name an expert of another rank, so they are checked here
  build_blocks(spec, sharded, tp, experts, cp);
  sharded.lay_out({.global_model = false});
  return {norm_keys(sharded), full.count_elements()};
}

}  // namespace tera
