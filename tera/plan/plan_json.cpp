#include <nlohmann/json.hpp>

#include "tera/plan/plan_table.h"

namespace tera {
namespace {

using nlohmann::json;

json layout_json(const ParallelShape& parallel) {
  return {{"world", parallel.mesh.world},
          {"tensor_parallel", parallel.mesh.tp},
          {"sequence_parallel", parallel.sequence_parallel},
          {"context_parallel", parallel.mesh.cp},
          {"cp_comm_type", name_of(parallel.cp_comm)},
          {"context_degrees", parallel.context_degrees()},
          {"pipeline_parallel", parallel.mesh.pp},
          {"data_parallel", parallel.dp},
          {"expert_parallel", parallel.mesh.ep},
          {"expert_tensor_parallel", MeshPlan(parallel.mesh).sizes().etp},
          {"sharding", name_of(parallel.sharding)},
          {"schedule", name_of(parallel.schedule)},
          {"chunks", parallel.chunks}};
}

json items_json(std::span<const MemoryItem> list) {
  json items = json::array();
  for (const auto& item : list)
    items.push_back(
        {{"name", item.name}, {"bytes", item.bytes * item.copies}, {"copies", item.copies}, {"tags", item.tags}});
  return items;
}

json groups_json(const StageRehearsal& stage) {
  json groups = json::object();
  for (const auto& [name, ranks, traffic] : stage.groups)
    if (ranks > 1)
      groups[name] = {
          {"ranks", ranks}, {"calls", traffic.calls}, {"bytes", traffic.bytes}, {"largest_bytes", traffic.largest}};
  return groups;
}

json chunks_json(const StageLayout& layout, int stage) {
  json chunks = json::array();
  for (int chunk = 0; chunk < layout.placement.chunks; ++chunk) {
    const StageBlocks& blocks = layout.of(stage, chunk);
    chunks.push_back({{"embedding", blocks.embedding},
                      {"first_layer", blocks.first_layer},
                      {"layers", blocks.layers},
                      {"loss", blocks.loss}});
  }
  return chunks;
}

}  // namespace

std::string plan_json(const Setup& setup, const WorldPlan& plan, std::optional<double> device_bytes) {
  json stages = json::array();
  for (const StageRehearsal& stage : plan.stages) {
    json one{{"chunks", chunks_json(plan.layout, static_cast<int>(stages.size()))},
             {"layers", stage.layers},
             {"parameters", stage.parameters},
             {"items", items_json(stage.memory.items())},
             {"total_bytes", stage.memory.total()},
             {"host_bytes", stage.memory.host_bytes()},
             {"host_items", items_json(stage.memory.host_items())},
             {"flops_per_step", stage.flops},
             {"groups", groups_json(stage)}};
    if (device_bytes) one["fits"] = fits(stage, usable_memory(setup, *device_bytes));
    stages.push_back(std::move(one));
  }
  const std::size_t largest = plan.largest_stage();
  json root{{"name", setup.config.run.name},
            {"parameters", plan.parameters},
            {"layout", layout_json(setup.parallel)},
            {"microbatches", setup.batch.num_microbatches},
            {"most_microbatches", setup.batch.largest_step()},
            {"bubble", plan.bubble},
            {"flops_per_step", plan.total_flops(setup.parallel)},
            {"largest_stage", largest},
            {"total_bytes", plan.stages[largest].memory.total()},
            {"items", items_json(plan.stages[largest].memory.items())},
            {"stages", std::move(stages)}};
  if (device_bytes) root["fits"] = fits(plan, usable_memory(setup, *device_bytes));
  if (plan.experts)
    root["experts"] = {{"per_rank", plan.experts->experts},
                       {"room_rows", plan.experts->rows},
                       {"even_rows", plan.experts->balanced},
                       {"worst_case_rows", plan.experts->worst_case}};
  return root.dump(1) + "\n";
}

}  // namespace tera
