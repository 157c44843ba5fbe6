#pragma once
#include <optional>
#include <string>

#include "tera/train/world_plan.h"

namespace tera {

// `tera plan`: every byte of a rank by what it is for, stage by stage, and what the ranks say to each other; as text or
// as JSON. With the memory of a device it also says which stages fit; of a GPU a part is kept free, as in a run.
std::string plan_table(const Setup& setup, const WorldPlan& plan, std::optional<double> device_bytes = {});
std::string plan_json(const Setup& setup, const WorldPlan& plan, std::optional<double> device_bytes = {});

// What a device has for a plan, and whether that is enough for a stage, or for each of them.
double room_on(const Setup& setup, double device_bytes);
bool fits(const StageRehearsal& stage, double room);
bool fits(const WorldPlan& plan, double room);

// "cp 4 (p2p)", of several ranks that share sequences; "cp 1 to 4 (p2p, dynamic)".
std::string describe_context(const ParallelShape& parallel);
// "etp 1 x ep 4 x edp 2": how the ranks of a stage share experts.
std::string describe_experts(const MeshSizes& mesh);

}  // namespace tera
