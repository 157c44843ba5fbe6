#include "tera/plan/memory_knobs.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "tera/base/joined.h"
#include "tera/parallel/mesh_plan.h"

namespace tera {
namespace {

constexpr int max_factor = 8;     // by which a parallel size, and the number of ranks, may grow
constexpr int gpus_per_node = 8;  // tensor parallelism beyond one node is slow
constexpr int any_size = 1 << 20;

Change unchanged(const Setup& setup) { return {{}, setup.config, setup.parallel.mesh.world}; }

// Full recompute of all layers leaves nothing to selective recompute; of offloaded modules, only layer inputs remain.
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

Knob shard_more(const Setup& setup) {
  Knob knob{KnobKind::sharding, {}};
  if (setup.parallel.replicas() == 1) return knob;
  for (const Sharding more : {Sharding::optim, Sharding::optim_grads, Sharding::optim_grads_params}) {
    if (more <= setup.parallel.sharding) continue;
    Change& change = knob.changes.emplace_back(unchanged(setup));
    change.words = fmt::format("ddp.data_parallel_sharding_strategy={}", name_of(more));
    change.config.ddp.data_parallel_sharding_strategy = more;
  }
  return knob;
}

struct Size {
  KnobKind kind;
  const char* key;
  std::int64_t DistConfig::*member;
  int now, max;  // beyond max only the next doubling of `now` is tried
};

// Takes ranks from data parallelism; where its size cannot be halved, adds ranks.
Knob split_more(const Setup& setup, const Size& size) {
  Knob knob{size.kind, {}};
  const int dp = setup.parallel.dp;
  for (int times = 2; times <= max_factor; times *= 2) {
    const bool by_replicas = dp % 2 == 0;
    if (times * size.now > std::max(size.max, 2 * size.now) || (by_replicas && dp % times != 0)) break;
    Change& change = knob.changes.emplace_back(unchanged(setup));
    change.words = fmt::format("{}={}", size.key, times * size.now);
    change.config.dist.*size.member = times * size.now;
    if (!by_replicas) change.world *= times;
  }
  return knob;
}

Knob sequence_parallel(const Setup& setup) {
  Knob knob{KnobKind::sequence, {}};
  if (setup.parallel.mesh.tp == 1 || setup.parallel.sequence_parallel) return knob;
  Change& change = knob.changes.emplace_back(unchanged(setup));
  change.words = "dist.sequence_parallel=true";
  change.config.dist.sequence_parallel = true;
  return knob;
}

// The next larger divisor of the number of experts, then each about four times the last, up to one expert a rank.
std::vector<int> larger_expert_sizes(int experts, int now) {
  std::vector<int> sizes;
  for (int ep = now + 1; ep <= experts; ++ep)
    if (experts % ep == 0 && (sizes.empty() || ep >= 4 * sizes.back() || ep == experts)) sizes.push_back(ep);
  return sizes;
}

// Expert parallelism over the ranks that a stage has; where these do not divide so, over more ranks.
Knob spread_experts(const Setup& setup) {
  Knob knob{KnobKind::experts, {}};
  if (!setup.model.moe) return knob;
  const MeshSizes mesh = MeshPlan(setup.parallel.mesh).sizes();
  for (const int ep : larger_expert_sizes(static_cast<int>(setup.model.moe->experts), mesh.ep)) {
    const std::int64_t world = std::lcm<std::int64_t>(mesh.world, std::int64_t{mesh.pp} * mesh.etp * ep);
    if (world > max_factor * mesh.world) continue;
    Change& change = knob.changes.emplace_back(unchanged(setup));
    change.words = fmt::format("dist.expert_model_parallel_size={}", ep);
    change.config.dist.expert_model_parallel_size = ep;
    change.world = static_cast<int>(world);
  }
  const auto here = [&](const Change& change) { return change.world == mesh.world; };
  if (std::ranges::any_of(knob.changes, here)) std::erase_if(knob.changes, std::not_fn(here));
  return knob;
}

// A smaller expert capacity: without a factor, memory is planned for all rows of all ranks of the group.
Knob less_expert_capacity(const Setup& setup) {
  Knob knob{KnobKind::rows, {}};
  if (!setup.model.moe || setup.parallel.mesh.ep == 1 || setup.model.moe->capacity_factor > 0) return knob;
  const double now = setup.model.moe->rank_capacity_factor;
  for (const double factor : {2.0, 1.5}) {
    if (now > 0 && now <= factor) continue;
    Change& change = knob.changes.emplace_back(unchanged(setup));
    change.words = fmt::format("model.moe.expert_rank_capacity_factor={}", factor);
    change.config.model.moe.expert_rank_capacity_factor = factor;
  }
  return knob;
}

}  // namespace

std::vector<Knob> knobs_of(const Setup& setup) {
  const bool on_gpu = setup.config.dist.device == DeviceChoice::cuda;
  const MeshSizes& mesh = setup.parallel.mesh;
  std::vector<Knob> knobs;
  if (!setup.model.recompute.full) knobs.push_back({KnobKind::recompute, {recompute_everything(setup)}});
  if (on_gpu && setup.config.model.offload_modules.empty())
    knobs.push_back({KnobKind::offload, {offload_everything(setup)}});
  knobs.push_back(shard_more(setup));
  if (on_gpu)  // elsewhere more ranks would share the same memory
    knobs.push_back(split_more(setup, {KnobKind::tensor, "dist.tensor_model_parallel_size",
                                       &DistConfig::tensor_model_parallel_size, mesh.tp, gpus_per_node}));
  knobs.push_back(sequence_parallel(setup));
  if (on_gpu) {
    knobs.push_back(split_more(setup, {KnobKind::pipeline, "dist.pipeline_model_parallel_size",
                                       &DistConfig::pipeline_model_parallel_size, mesh.pp, any_size}));
    knobs.push_back(split_more(setup, {KnobKind::context, "dist.context_parallel_size",
                                       &DistConfig::context_parallel_size, mesh.cp, any_size}));
    knobs.push_back(spread_experts(setup));
  }
  knobs.push_back(less_expert_capacity(setup));
  return knobs;
}

}  // namespace tera
