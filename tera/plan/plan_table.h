#pragma once
#include <optional>
#include <string>

#include "tera/plan/world_plan.h"

namespace tera {

// `tera plan`: every byte of a rank by purpose, stage by stage, and the traffic between ranks; as text or as JSON. With
// the memory of a device it also says which stages fit; of a GPU's memory a part is kept free, as in a run.
std::string plan_table(const Setup& setup, const WorldPlan& plan, std::optional<double> device_bytes = {});
std::string plan_json(const Setup& setup, const WorldPlan& plan, std::optional<double> device_bytes = {});

// Bytes of a device that a plan may use, and whether they suffice for a stage, or for every stage.
double usable_memory(const Setup& setup, double device_bytes);
bool fits(const StageRehearsal& stage, double available);
bool fits(const WorldPlan& plan, double available);

// "cp 4 (p2p)", of several ranks that share sequences; "cp 1 to 4 (p2p, dynamic)".
std::string describe_context(const ParallelShape& parallel);
// "etp 1 x ep 4 x edp 2": how the ranks of a stage share experts.
std::string describe_experts(const MeshSizes& mesh);

}  // namespace tera
