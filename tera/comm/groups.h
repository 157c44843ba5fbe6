#pragma once
// The groups of one rank. They are known by arithmetic when a model is built and planned, and joined when its memory is
// bound.

#include <deque>
#include <vector>

#include "tera/comm/planned_comm.h"
#include "tera/config/mesh_plan.h"

namespace tera {

class Groups {
 public:
  // kv_replicas: tensor-parallel ranks that hold the same key/value heads.
  // context_degrees: those below cp of which there are groups of their own.
  Groups(const MeshPlan& plan, int rank, int kv_replicas = 1, const std::vector<int>& context_degrees = {});
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;

  // Meets the others; every rank of the world does so. The world outlives the groups.
  void join(Comm& world);

  // In the order of Axis, kv, and those of context_degrees.
  std::vector<PlannedComm*> all() {
    std::vector<PlannedComm*> list{&world, &tp, &cp, &dp, &dp_cp, &pp, &ep, &etp, &etp_ep, &edp, &embed, &kv};
    for (PlannedComm& part : cp_parts) list.push_back(&part);
    return list;
  }

  const Coord coord;
  const int rank;
  PlannedComm world, tp, cp, dp, dp_cp, pp, ep, etp, etp_ep, edp;
  PlannedComm embed;                 // first and last stage
  PlannedComm kv;                    // ranks of tp with the same key/value heads
  std::deque<PlannedComm> cp_parts;  // neighbours of cp, as many as context_degrees say; the ranks that share documents

 private:
  MeshPlan plan_;
  int kv_replicas_;
};

}  // namespace tera
