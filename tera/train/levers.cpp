#include "tera/train/levers.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "tera/base/joined.h"
#include "tera/config/mesh_plan.h"

namespace tera {
namespace {

constexpr int most_times = 8;         // what a size is, and how many ranks there are
constexpr int gpus_of_a_machine = 8;  // mostly; sums over more ranks are slow
constexpr int any_size = 1 << 20;

Change unchanged(const Setup& setup) { return {{}, setup.config, setup.parallel.mesh.world}; }

// All layers, so nothing is left for modules; of what waits on the host, only their inputs.
Change recompute_everything(const Setup& setup) {
  Change change = unchanged(setup);
  change.words = "model.recompute_granularity=full";
  ModelConfig& model = change.config.model;
  model.recompute_granularity = RecomputeGranularity::full;
  if (!model.recompute_modules.empty()) change.words += " without model.recompute_modules";
  model.recompute_modules.clear();
  const bool inputs = std::ranges::find(model.offload_modules, "attn_norm") != model.offload_modules.end();
  if (model.offload_modules.size() > (inputs ? 1u : 0u)) change.words += " without other model.offload_modules";
  model.offload_modules = inputs ? std::vector<std::string>{"attn_norm"} : std::vector<std::string>();
  return change;
}

Change offload_everything(const Setup& setup) {
  Change change = unchanged(setup);
  std::vector<std::string>& modules = change.config.model.offload_modules;
  modules = {"attn_norm"};
  if (!setup.model.recompute.full) modules.insert(modules.end(), {"attention", "mlp_norm", "mlp"});
  change.words = fmt::format("model.offload_modules=[{}]", joined(modules, ","));
  return change;
}

Lever shard_more(const Setup& setup) {
  Lever lever{LeverKind::sharding, {}};
  if (setup.parallel.replicas() == 1) return lever;
  for (const Sharding more : {Sharding::optim, Sharding::optim_grads, Sharding::optim_grads_params}) {
    if (more <= setup.parallel.sharding) continue;
    Change& change = lever.changes.emplace_back(unchanged(setup));
    change.words = fmt::format("ddp.data_parallel_sharding_strategy={}", name_of(more));
    change.config.ddp.data_parallel_sharding_strategy = more;
  }
  return lever;
}

struct Size {
  LeverKind kind;
  const char* key;
  std::int64_t DistConfig::*member;
  int now, most;  // more than that only as the next step from what there is now
};

// With ranks that were replicas; where those cannot be halved, on more ranks.
Lever split_more(const Setup& setup, const Size& size) {
  Lever lever{size.kind, {}};
  const int dp = setup.parallel.dp;
  for (int times = 2; times <= most_times; times *= 2) {
    const bool by_replicas = dp % 2 == 0;
    if (times * size.now > std::max(size.most, 2 * size.now) || (by_replicas && dp % times != 0)) break;
    Change& change = lever.changes.emplace_back(unchanged(setup));
    change.words = fmt::format("{}={}", size.key, times * size.now);
    change.config.dist.*size.member = times * size.now;
    if (!by_replicas) change.world *= times;
  }
  return lever;
}

Lever sequence_parallel(const Setup& setup) {
  Lever lever{LeverKind::sequence, {}};
  if (setup.parallel.mesh.tp == 1 || setup.parallel.sequence_parallel) return lever;
  Change& change = lever.changes.emplace_back(unchanged(setup));
  change.words = "dist.sequence_parallel=true";
  change.config.dist.sequence_parallel = true;
  return lever;
}

// The next larger number that divides the experts, then about four times as many each, up to one on a rank.
std::vector<int> larger_expert_sizes(int experts, int now) {
  std::vector<int> sizes;
  for (int ep = now + 1; ep <= experts; ++ep)
    if (experts % ep == 0 && (sizes.empty() || ep >= 4 * sizes.back() || ep == experts)) sizes.push_back(ep);
  return sizes;
}

// Over the ranks that a stage has; where these do not divide so, on more of them.
Lever spread_experts(const Setup& setup) {
  Lever lever{LeverKind::experts, {}};
  if (!setup.model.moe) return lever;
  const MeshSizes mesh = MeshPlan(setup.parallel.mesh).sizes();
  for (const int ep : larger_expert_sizes(static_cast<int>(setup.model.moe->experts), mesh.ep)) {
    const std::int64_t world = std::lcm<std::int64_t>(mesh.world, std::int64_t{mesh.pp} * mesh.etp * ep);
    if (world > most_times * mesh.world) continue;
    Change& change = lever.changes.emplace_back(unchanged(setup));
    change.words = fmt::format("dist.expert_model_parallel_size={}", ep);
    change.config.dist.expert_model_parallel_size = ep;
    change.world = static_cast<int>(world);
  }
  const auto here = [&](const Change& change) { return change.world == mesh.world; };
  if (std::ranges::any_of(lever.changes, here)) std::erase_if(lever.changes, std::not_fn(here));
  return lever;
}

// In place of room for all rows of all ranks of the group, or of more than this.
Lever less_room_for_rows(const Setup& setup) {
  Lever lever{LeverKind::rows, {}};
  if (!setup.model.moe || setup.parallel.mesh.ep == 1 || setup.model.moe->capacity_factor > 0) return lever;
  const double now = setup.model.moe->rank_capacity_factor;
  for (const double factor : {2.0, 1.5}) {
    if (now > 0 && now <= factor) continue;
    Change& change = lever.changes.emplace_back(unchanged(setup));
    change.words = fmt::format("model.moe.expert_rank_capacity_factor={}", factor);
    change.config.model.moe.expert_rank_capacity_factor = factor;
  }
  return lever;
}

}  // namespace

std::vector<Lever> levers_of(const Setup& setup) {
  const bool on_gpu = setup.config.dist.device == DeviceChoice::cuda;
  const MeshSizes& mesh = setup.parallel.mesh;
  std::vector<Lever> levers;
  if (!setup.model.recompute.full) levers.push_back({LeverKind::recompute, {recompute_everything(setup)}});
  if (on_gpu && setup.config.model.offload_modules.empty())
    levers.push_back({LeverKind::offload, {offload_everything(setup)}});
  levers.push_back(shard_more(setup));
  if (on_gpu)  // elsewhere more ranks would share the same memory
    levers.push_back(split_more(setup, {LeverKind::tensor, "dist.tensor_model_parallel_size",
                                        &DistConfig::tensor_model_parallel_size, mesh.tp, gpus_of_a_machine}));
  levers.push_back(sequence_parallel(setup));
  if (on_gpu) {
    levers.push_back(split_more(setup, {LeverKind::pipeline, "dist.pipeline_model_parallel_size",
                                        &DistConfig::pipeline_model_parallel_size, mesh.pp, any_size}));
    levers.push_back(split_more(setup, {LeverKind::context, "dist.context_parallel_size",
                                        &DistConfig::context_parallel_size, mesh.cp, any_size}));
    levers.push_back(spread_experts(setup));
  }
  levers.push_back(less_room_for_rows(setup));
  return levers;
}

}  // namespace tera
