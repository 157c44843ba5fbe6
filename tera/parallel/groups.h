#pragma once
// The communicators of one rank, one per axis of the mesh. Their sizes are known by arithmetic when a model is built
// and planned, and they are joined when its memory is bound.

#include <deque>
#include <vector>

#include "tera/comm/planned_comm.h"
#include "tera/parallel/mesh_plan.h"

namespace tera {

class Groups {
 public:
  // kv_replicas: tensor-parallel ranks that hold the same key/value heads.
  // context_degrees: degrees of dynamic context parallelism below cp, for which there are subgroups of cp.
  Groups(const MeshPlan& plan, int rank, int kv_replicas = 1, const std::vector<int>& context_degrees = {});
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;

  // Splits the world into the groups; every rank calls it. The world outlives the groups.
  void join(Comm& joined_world);

  // Groups in the order of Axis, then kv, then those of context_degrees.
  std::vector<PlannedComm*> all() {
    std::vector<PlannedComm*> list{&world, &tp, &cp, &dp, &dp_cp, &pp, &ep, &etp, &etp_ep, &edp, &embed, &kv};
    for (PlannedComm& part : cp_subgroups) list.push_back(&part);
    return list;
  }

  const Coord coord;
  const int rank;
  PlannedComm world, tp, cp, dp, dp_cp, pp, ep, etp, etp_ep, edp;
  PlannedComm embed;                     // first and last stage, which share a tied embedding table
  PlannedComm kv;                        // ranks of tp with the same key/value heads
  std::deque<PlannedComm> cp_subgroups;  // one per degree: so many neighbours in cp, which split the same documents

 private:
  MeshPlan plan_;
  int kv_replicas_;
};

}  // namespace tera
