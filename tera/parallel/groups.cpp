#include "tera/parallel/groups.h"

#include <fmt/core.h>

#include <algorithm>

namespace tera {
namespace {

PlannedComm planned(const MeshPlan& plan, Axis axis, int rank) {
  const std::vector<int> members = plan.members(axis, rank);
  const auto group_rank = std::find(members.begin(), members.end(), rank) - members.begin();
  return {std::string(name_of(axis)), static_cast<int>(group_rank), static_cast<int>(members.size())};
}

}  // namespace

Groups::Groups(const MeshPlan& plan, int rank_, int kv_replicas, const std::vector<int>& context_degrees)
    : coord(plan.coord(rank_)),
      rank(rank_),
      world(planned(plan, Axis::world, rank_)),
      tp(planned(plan, Axis::tp, rank_)),
      cp(planned(plan, Axis::cp, rank_)),
      dp(planned(plan, Axis::dp, rank_)),
      dp_cp(planned(plan, Axis::dp_cp, rank_)),
      pp(planned(plan, Axis::pp, rank_)),
      ep(planned(plan, Axis::ep, rank_)),
      etp(planned(plan, Axis::etp, rank_)),
      etp_ep(planned(plan, Axis::etp_ep, rank_)),
      edp(planned(plan, Axis::edp, rank_)),
      embed(planned(plan, Axis::embed, rank_)),
      kv("kv", coord.tp % kv_replicas, kv_replicas),
      plan_(plan),
      kv_replicas_(kv_replicas) {
  for (const int degree : context_degrees)
    cp_subgroups.emplace_back(fmt::format("cp_{}", degree), coord.cp % degree, degree);
}

void Groups::join(Comm& joined_world) {
  world.join(joined_world);
  constexpr std::array axes{Axis::tp, Axis::cp,  Axis::dp,     Axis::dp_cp, Axis::pp,
                            Axis::ep, Axis::etp, Axis::etp_ep, Axis::edp,   Axis::embed};
  const auto groups = all();
  for (std::size_t i = 0; i < axes.size(); ++i)
    groups[i + 1]->join(joined_world.split(plan_.color(axes[i], rank), rank, std::string(name_of(axes[i]))));
  kv.join(tp.split(coord.tp / kv_replicas_, coord.tp, "kv"));
  for (PlannedComm& part : cp_subgroups)
    part.join(cp.split(coord.cp / part.size(), coord.cp, std::string(part.name())));
}

}  // namespace tera
