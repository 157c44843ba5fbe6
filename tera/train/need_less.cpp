#include "tera/train/need_less.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "tera/base/error.h"
#include "tera/base/joined.h"
#include "tera/config/resolve.h"
#include "tera/train/world_plan.h"

namespace tera {
namespace {

constexpr double least_saved = 0.02;  // of a plan, to be worth naming
constexpr double most_needed = 16;    // times the room, to be worth looking

struct Way {
  std::string words;
  RunConfig config;
  int world = 1;
};

// All layers, so nothing is left for modules; of what waits on the host, only their inputs.
Way recompute_everything(const Setup& setup) {
  Way way{"model.recompute_granularity=full", setup.config, setup.parallel.mesh.world};
  ModelConfig& model = way.config.model;
  model.recompute_granularity = RecomputeGranularity::full;
  if (!model.recompute_modules.empty()) way.words += " without model.recompute_modules";
  model.recompute_modules.clear();
  const bool inputs = std::ranges::find(model.offload_modules, "attn_norm") != model.offload_modules.end();
  if (model.offload_modules.size() > (inputs ? 1u : 0u)) way.words += " without other model.offload_modules";
  model.offload_modules = inputs ? std::vector<std::string>{"attn_norm"} : std::vector<std::string>();
  return way;
}

Way offload_everything(const Setup& setup) {
  Way way{{}, setup.config, setup.parallel.mesh.world};
  std::vector<std::string>& modules = way.config.model.offload_modules;
  modules = {"attn_norm"};
  if (!setup.model.recompute.full) modules.insert(modules.end(), {"attention", "mlp_norm", "mlp"});
  way.words = fmt::format("model.offload_modules=[{}]", joined(modules, ","));
  return way;
}

Way shard(const Setup& setup, Sharding sharding) {
  Way way{fmt::format("ddp.data_parallel_sharding_strategy={}", name_of(sharding)), setup.config,
          setup.parallel.mesh.world};
  way.config.ddp.data_parallel_sharding_strategy = sharding;
  return way;
}

// With ranks that were replicas, if there are any.
Way split_in_two(const Setup& setup, const char* key, std::int64_t DistConfig::*size, int now) {
  Way way{fmt::format("{}={}", key, 2 * now), setup.config, setup.parallel.mesh.world};
  way.config.dist.*size = 2 * now;
  if (setup.parallel.dp % 2 != 0) {
    way.world *= 2;
    way.words += fmt::format(" on {} ranks", way.world);
  }
  return way;
}

std::vector<Way> ways_of(const Setup& setup) {
  const bool on_gpu = setup.config.dist.device == DeviceChoice::cuda;
  const ParallelShape& parallel = setup.parallel;
  std::vector<Way> ways;
  if (!setup.model.recompute.full) ways.push_back(recompute_everything(setup));
  if (on_gpu && setup.config.model.offload_modules.empty()) ways.push_back(offload_everything(setup));
  if (parallel.replicas() > 1)
    for (const Sharding more : {Sharding::optim, Sharding::optim_grads_params})
      if (parallel.sharding < more) ways.push_back(shard(setup, more));
  if (!on_gpu) return ways;  // more ranks would share the same memory
  ways.push_back(split_in_two(setup, "dist.tensor_model_parallel_size", &DistConfig::tensor_model_parallel_size,
                              parallel.mesh.tp));
  ways.push_back(split_in_two(setup, "dist.pipeline_model_parallel_size", &DistConfig::pipeline_model_parallel_size,
                              parallel.mesh.pp));
  ways.push_back(
      split_in_two(setup, "dist.context_parallel_size", &DistConfig::context_parallel_size, parallel.mesh.cp));
  return ways;
}

// Of the largest rank; none where the rules of the config, or the numbers themselves, forbid it.
std::optional<std::size_t> bytes_of(const RunConfig& config, int world, const WorkspaceRules& rules) {
  try {
    const WorldPlan plan = plan_world(resolve(config, Purpose::inspect, nullptr, world), rules);
    return plan.stages[plan.largest_stage()].memory.total();
  } catch (const UserError&) {
    return std::nullopt;
  }
}

// Whether sequences, and microbatches, could be so short that it fits.
bool smaller_sizes_would_do(const Setup& setup, const WorkspaceRules& rules, double room) {
  RunConfig config = setup.config;
  config.train.micro_batch_size = 1;
  config.train.seq_length = 2 * setup.parallel.mesh.cp * setup.parallel.mesh.tp;
  const auto then = bytes_of(config, setup.parallel.mesh.world, rules);
  return !then || static_cast<double>(*then) <= room;
}

}  // namespace

std::string how_to_need_less(const Setup& setup, const WorkspaceRules& rules, double needed, double room) {
  const std::string smaller = setup.batch.micro_batch > 1 ? "a smaller train.micro_batch_size or train.seq_length"
                                                          : "a smaller train.seq_length";
  std::vector<std::pair<std::size_t, std::string>> found;
  for (const Way& way : needed <= most_needed * room ? ways_of(setup) : std::vector<Way>()) {
    const auto then = bytes_of(way.config, way.world, rules);
    if (!then || static_cast<double>(*then) > (1 - least_saved) * needed) continue;
    found.emplace_back(*then, fmt::format("{} ({}{})", way.words, format_bytes(*then), way.world > 1 ? " a rank" : ""));
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> named;
  if (smaller_sizes_would_do(setup, rules, room)) named.push_back(smaller);
  for (const auto& [bytes, words] : found) named.push_back(words);
  if (named.empty()) return "no one change would do: it takes more ranks, or a smaller model";
  return joined(named, ", or ") + " needs less";
}

}  // namespace tera
