#pragma once
// How routed experts are cut over ranks: each rank of ep has a run of them, as many as the others, and of each of these
// a rank of etp has a piece of the features. With 4 experts, ep 2 and etp 2:
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
  Comm* etp = nullptr;     // none: and all of each
  Comm* group = nullptr;   // both: ranks that together have every expert once, etp inside ep; none: one rank
  bool same_rows = false;  // its ranks have the same rows of a microbatch; else each has rows of its own
  int first_rank = 0;      // of the group, in the world: the others follow. For messages

  // Which experts of so many are here.
  struct Range {
    std::int64_t begin, end;
    std::int64_t size() const { return end - begin; }
  };
  Range held(std::int64_t experts) const;

  // The part of an expert's tensor that this rank holds: of the dim one piece of as many equal ones as etp has ranks.
  Part piece(Part part, int split) const;
  // The part as every rank of etp holds it.
  Part replicated(Part part) const;

  // Of a parameter that holds all experts of this rank one after the other, rows of each as `parts_of_expert` gives
  // them (cut by the calls above). Fills in where they begin.
  using PartsOfExpert = FunctionRef<std::vector<Part>(std::int64_t expert)>;
  std::vector<Part> parts(std::int64_t experts, PartsOfExpert parts_of_expert) const;
};

}  // namespace tera
