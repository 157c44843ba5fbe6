#pragma once
// Expert parallelism: how routed experts are sharded over ranks. Each rank of ep has a range of equal length of them,
// and each rank of etp (expert tensor parallelism) a slice of their features. With 4 experts, ep 2 and etp 2:
//
//            etp 0                    etp 1
//   ep 0     first halves of 0, 1     second halves of 0, 1
//   ep 1     first halves of 2, 3     second halves of 2, 3

#include <vector>

#include "tera/base/function_ref.h"
#include "tera/comm/comm.h"
#include "tera/nn/part.h"

namespace tera {

struct ExpertParallel {
  Comm* ep = nullptr;      // none: one rank has all experts
  Comm* etp = nullptr;     // none: one rank has all features of its experts
  Comm* group = nullptr;   // ep x etp: ranks that together have every expert once, etp inside ep; none: one rank
  bool same_rows = false;  // ranks of the group have the same rows of a microbatch; else each has its own
  int first_rank = 0;      // world rank of the group's first rank; the others follow. For messages

  // The experts of this rank, among so many.
  struct Range {
    std::int64_t begin, end;
    std::int64_t size() const { return end - begin; }
  };
  Range local_experts(std::int64_t experts) const;

  // The part of an expert's tensor that this rank holds: one of the equal slices of dim `split`, one per rank of etp.
  Part piece(Part part, int split) const;
  // The part where every rank of etp holds all of it.
  Part replicated(Part part) const;

  // The parts of a parameter that holds all experts of this rank one after the other. `parts_of_expert` gives the rows
  // of each, sharded by the calls above; this call fills in where they begin.
  using PartsOfExpert = FunctionRef<std::vector<Part>(std::int64_t expert)>;
  std::vector<Part> parts(std::int64_t experts, PartsOfExpert parts_of_expert) const;
};

}  // namespace tera
