#include "tera/plan/world_plan.h"

#include <algorithm>

#include "tera/nn/ffn/dispatch.h"
#include "tera/pipeline/check.h"
#include "tera/train/training_step.h"

namespace tera {
namespace {

int count_layers(const StageLayout& layout, int stage) {
  int layers = 0;
  for (int chunk = 0; chunk < layout.placement.chunks; ++chunk) layers += layout.of(stage, chunk).layers;
  return layers;
}

std::vector<GroupTraffic> group_traffic(const Setup& setup, int rank, const std::vector<Traffic>& traffic) {
  Groups groups = make_groups(setup, rank);
  std::vector<GroupTraffic> list;
  for (const PlannedComm* group : groups.all())
    list.push_back({std::string(group->name()), group->size(), traffic.at(list.size())});
  return list;
}

}  // namespace

ExpertCapacity expert_capacity_of(const Setup& setup) {
  const MoeShape& moe = *setup.model.moe;
  const MeshSizes mesh = MeshPlan(setup.parallel.mesh).sizes();
  const std::int64_t rows = setup.batch.micro_batch * setup.batch.seq_length / mesh.cp;
  const std::int64_t tokens =
      cuts_expert_rows(setup.parallel, moe) ? rows / mesh.tp * mesh.etp * mesh.ep : rows;  // that a group dispatches
  ExpertCapacity capacity{.experts = moe.experts / mesh.ep, .balanced = tokens * moe.router.topk / mesh.ep};
  capacity.worst_case = tokens * std::min(moe.router.topk, capacity.experts);
  const int senders = moe.dispatcher == TokenDispatcher::alltoall && mesh.ep > 1 ? mesh.etp * mesh.ep : 1;
  const std::int64_t each = tokens / senders;  // tokens per sender; with alltoall every sender drops its own overflow
  capacity.rows =
      moe.capacity_factor > 0
          ? capacity.experts * senders * padded_rows(moe.capacity_factor, each * moe.router.topk, moe.experts, each)
          : local_expert_capacity(moe.rank_capacity_factor, static_cast<double>(tokens * moe.router.topk) / mesh.ep,
                                  capacity.worst_case);
  return capacity;
}

std::size_t WorldPlan::largest_stage() const {
  const auto smaller = [](const auto& a, const auto& b) { return a.memory.total() < b.memory.total(); };
  return static_cast<std::size_t>(std::max_element(stages.begin(), stages.end(), smaller) - stages.begin());
}

double WorldPlan::total_flops(const ParallelShape& parallel) const {
  double one_replica = 0;
  for (const auto& stage : stages) one_replica += stage.flops * parallel.mesh.tp * parallel.mesh.cp;
  return one_replica * parallel.dp;
}

WorldPlan plan_world(const Setup& setup, const WorkspaceRules& rules) {
  const MeshPlan mesh(setup.parallel.mesh);
  WorldPlan plan{.layout = stage_layout(setup), .bubble = check(training_schedule(setup)).bubble};
  std::vector<StageSchedules> schedules = all_stage_schedules(setup);
  for (int stage = 0; stage < setup.parallel.mesh.pp; ++stage) {
    const int rank = mesh.rank({.pp = stage});
    TrainingStep step(setup, rank, std::move(schedules[static_cast<std::size_t>(stage)]));
    StageRehearsal rehearsal{.layers = count_layers(plan.layout, stage), .memory = step.plan(rules)};
    rehearsal.parameters = step.params().count_elements();
    rehearsal.flops = step.planned().flops;
    rehearsal.groups = group_traffic(setup, rank, step.planned().traffic);
    plan.parameters = step.count_parameters();
    plan.stages.push_back(std::move(rehearsal));
  }
  if (setup.model.moe) plan.experts = expert_capacity_of(setup);
  return plan;
}

}  // namespace tera
